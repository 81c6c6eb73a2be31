"""Local reparameterisation."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling, using
from leanbayes.posteriors import k_tied
from leanbayes.posteriors.k_tied import KTiedPosterior
from leanbayes.testing import EstimatorSuite, run_apart, run_folded


class TestDense(EstimatorSuite):
    estimator = "local"
    one_weight_per_example = True  # of one vector

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, bias="same"))

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestConvolution(EstimatorSuite):
    estimator = "local"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Conv1d(2, 3, 2, padding=1), lb.KTied(init_std=0.3))

    def make_input(self, rows):
        return torch.randn(rows, 2, 3)


class TestMomentMatching(EstimatorSuite):
    estimator = "local"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.VarianceLayer("bernoulli", estimator="local"))

    def make_input(self, rows):
        return torch.randn(rows, 4)

    # Only mean and variance match, so that a loss beyond the square has another gradient.
    test_gradients_have_the_expectation_of_drawn_weights = None


def test_variance_is_that_of_the_sum_of_independent_weights():
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2, bias=False), lb.MeanField(init_std=0.5, estimator="local"))
    x = torch.tensor([[1.0, -2.0, 3.0]])
    with lb.sampling(n=4000), torch.no_grad():
        y = layer(lb.fold(x, 4000))
    std = (layer.weight.posterior.std().square() @ x.square().T).sqrt().flatten()
    torch.testing.assert_close(y.std(0), std, rtol=0.05, atol=0)


def test_neither_noise_nor_nan_without_variance():
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.MeanField(init_std=0.5, estimator="local"))
    x = torch.zeros(4, 3)
    y = layer(x)
    assert torch.equal(y, layer.bias.expand(4, 2))
    y.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_the_smallest_variances_keep_finite_gradients():
    for scale in (1e-3, 1e-6, 1e-9, 1e-12):
        layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.MeanField(init_std=0.5, estimator="local"))
        x = (scale * torch.randn(4, 3)).requires_grad_()
        layer(x).sum().backward()
        assert x.grad.isfinite().all() and layer.weight.posterior.raw_std.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_computes_variances_in_float32(dtype):
    layer = lb.nn.BayesianLayer(nn.Linear(40, 3), lb.MeanField(init_std=0.3, estimator="local")).to(dtype)
    # The squares of these inputs leave float16's range.
    x = torch.full((500, 40), 400.0, dtype=dtype)
    with torch.no_grad():
        y = layer(x)
    assert y.dtype == dtype and y.isfinite().all()
    expected = 400 * layer.weight.posterior.std().square().sum(1).sqrt()
    torch.testing.assert_close(y.float().std(0), expected, rtol=0.2, atol=0)


def test_autocast_gives_the_plain_layers_dtype():
    plain = nn.Linear(4, 3)
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.VarianceLayer(estimator="local"))
    other = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(estimator="local"))
    x = torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == other(x).dtype == plain(x).dtype == torch.bfloat16


def test_sequence_first_rows_get_noise_of_their_own():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, estimator="local")).eval()
    x = torch.randn(5, 2, 4)
    folded, apart = (run(layer, x, 3, batch_dim=1) for run in (run_folded, run_apart))
    torch.testing.assert_close(folded, apart)


def test_positions_get_noise_of_their_own():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, estimator="local"))
    with using(Sampling()):
        y = layer(torch.ones(1, 2, 4))
    assert not torch.allclose(y[:, 0], y[:, 1])


THIN = {
    "dense": (lambda: nn.Linear(30, 40), (6, 30)),
    "sequence": (lambda: nn.Linear(30, 40), (2, 5, 30)),
    "convolution": (lambda: nn.Conv2d(8, 12, 3, stride=2, padding=1), (3, 8, 7, 6)),
    "circular": (lambda: nn.Conv1d(8, 12, 3, padding=1, padding_mode="circular"), (3, 8, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 3, stride=2), (3, 8, 4, 5)),
}


@pytest.mark.parametrize("zero_mean", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", THIN)
def test_tied_variances_by_their_factors_are_those_of_the_whole_matrix(kind, rank, zero_mean, monkeypatch):
    build, shape = THIN[kind]
    layer = lb.nn.BayesianLayer(build(), lb.KTied(rank, init_std=0.3, bias="same", estimator="local")).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(k_tied, "_THIN", 0.5)  # these layers are small
    assert layer.weight.thin_variance(layer.op) is not None
    found = with_gradients(layer, x, zero_mean)
    monkeypatch.setattr(KTiedPosterior, "thin_variance", lambda self, out_axis: None)
    for ours, expected in zip(found, with_gradients(layer, x, zero_mean), strict=True):
        torch.testing.assert_close(ours, expected)


def with_gradients(layer, x, zero_mean):
    with lb.sampling(seed=3, zero_mean=zero_mean):
        y = layer(x)
    values = [x, *layer.parameters()]
    gradients = torch.autograd.grad(y.square().sum(), values, allow_unused=True)
    return y, *(torch.zeros_like(v) if g is None else g for v, g in zip(values, gradients))


def test_factors_that_save_nothing_are_multiplied():
    narrow = lb.nn.BayesianLayer(nn.Conv2d(16, 16, 3), lb.KTied(2, estimator="local"))
    assert narrow.weight.thin_variance(narrow.op) is None
    grouped = lb.nn.BayesianLayer(nn.Conv1d(256, 256, 3, groups=2), lb.KTied(2, estimator="local"))
    assert grouped.weight.posterior.thin_variance(0) is not None
    assert grouped.weight.thin_variance(grouped.op) is None
