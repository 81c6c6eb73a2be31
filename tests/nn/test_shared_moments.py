"""Samples of a layer that draws its output, and whose input they share, are drawn from moments computed once."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import _prefix
from leanbayes.nn import _shared_moments

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))
METHODS = [
    lb.MeanField(init_std=0.3),
    lb.MeanField(init_std=0.3, bias="same"),
    lb.KTied(rank=2, init_std=0.3),
    lb.VariationalDropout(init_log_alpha=-1.0),
    lb.VarianceLayer(),
]


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 7)).eval()


def behind_plain_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Sequential(nn.Linear(9, 6), nn.ReLU()), nn.Linear(6, 3)).eval()


@pytest.fixture
def one_by_one(monkeypatch):
    """A function that predicts without sharing."""

    def predict(model, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(_prefix, "shares_moments", lambda *_: False)
            return lb.predict(model, *args, **kwargs)

    return predict


@pytest.fixture
def computed(monkeypatch):
    """The numbers of rows that moments were computed of."""
    found = []
    real = _shared_moments.output_moments
    monkeypatch.setattr(
        _shared_moments, "output_moments", lambda call: found.append((len(call.x), call.path)) or real(call)
    )
    return found


@pytest.mark.parametrize("chunk", [None, 1, 3])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{type(method).__name__}-{method.wanted_estimator}")
def test_samples_are_those_of_rows_that_are_computed_one_by_one(method, chunk, one_by_one, computed):
    model = lb.bayesianize(dense(), method)
    found = lb.predict(model, X, 10, seed=0, chunk=chunk).outputs
    assert computed == [(6, "0")]  # once for all samples, whatever the chunks
    expected = one_by_one(model, X, 10, seed=0, chunk=chunk).outputs
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_layer_may_lie_behind_plain_ones(one_by_one, computed):
    model = lb.bayesianize(behind_plain_layers(), METHODS[0], where=~lb.named("0"))
    found = lb.predict(model, X, 10, seed=0).outputs
    assert computed == [(6, "2.0")]
    torch.testing.assert_close(found, one_by_one(model, X, 10, seed=0).outputs, rtol=1e-5, atol=1e-6)


def test_convolutions_share_where_local_is_named(one_by_one, computed):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    model = lb.bayesianize(net, lb.MeanField(estimator="local", init_std=0.2))
    found = lb.predict(model, IMAGES, 10, seed=0).outputs
    assert computed == [(6, "0")]
    torch.testing.assert_close(found, one_by_one(model, IMAGES, 10, seed=0).outputs, rtol=1e-5, atol=1e-6)


def test_half_precision_is_that_of_autocast(one_by_one, computed):
    model = lb.bayesianize(dense(), METHODS[0])
    with torch.autocast("cpu", torch.bfloat16):
        found = lb.predict(model, X, 10, seed=0).outputs
        expected = one_by_one(model, X, 10, seed=0).outputs
    assert len(computed) == 1
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


def test_moments_are_those_of_the_posterior():
    layer = lb.bayesianize(nn.Sequential(nn.Linear(5, 3)), lb.MeanField(init_std=0.4))
    samples = 20_000
    outputs = lb.predict(layer, X, samples, seed=0).outputs
    weight = layer[0].weight.posterior
    mean, var = nn.functional.linear(X, weight.loc, layer[0].bias), X.square() @ weight.std().square().T
    # Of normal numbers the mean has a standard error of sqrt(v / S), the variance one of v sqrt(2 / S).
    assert ((outputs.mean(0) - mean).abs() < 5 * (var / samples).sqrt()).all()
    assert ((outputs.var(0) / var - 1).abs() < 5 * (2 / samples) ** 0.5).all()


@pytest.mark.parametrize(
    "run",
    [
        lambda model: lb.predict(model, X, 6, seed=0, joint=True),
        lambda model: lb.predict(model, X.view(3, 2, 5), 6, seed=0),  # sequences meet one weight at all positions
        lambda model: lb.predict(model, X, 6, seed=0, grad=True),
    ],
    ids=["joint", "sequences", "with gradients"],
)
def test_whoever_draws_weights_or_differentiates_shares_nothing(run, computed):
    run(lb.bayesianize(dense(), METHODS[0]))
    assert not computed


def test_hooks_see_all_rows(computed):
    model = lb.bayesianize(dense(), METHODS[0])
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    lb.predict(model, X, 10, seed=0)
    assert not computed
    assert 60 in seen
