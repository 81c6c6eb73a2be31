"""Feature scales of their own for each example in recurrent and bilinear layers, which leave torch's fused kernels."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

import leanbayes as lb
from leanbayes._sampling import current_sampling, own_frame
from leanbayes.nn.dropout import DropoutLayer
from leanbayes.testing import assert_folds, assert_mean_close

LAYERS = {
    "lstm": lambda: nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True),
    "projected": lambda: nn.LSTM(4, 5, 2, batch_first=True, proj_size=3),
    "gru": lambda: nn.GRU(4, 5, 2, batch_first=True, bidirectional=True),
    "tanh": lambda: nn.RNN(4, 5, batch_first=True, bias=False),
    "relu": lambda: nn.RNN(4, 5, batch_first=True, nonlinearity="relu"),
    "time_first": lambda: nn.LSTM(4, 5),
}
METHODS = {"dropout": lb.MCDropout(0.4), "rank1": lb.Rank1(components=2, init_std=0.4, estimator="rank1")}


def make(kind, method):
    torch.manual_seed(0)
    plain = LAYERS[kind]()
    return plain, lb.bayesianize(LAYERS[kind](), method)


def with_weights_of(layer, plain, row, spec):
    """The plain layer with the weights that one row has met."""
    for name, parameter in plain.named_parameters():
        owner = getattr(layer, name)
        if isinstance(owner, nn.Parameter):
            parameter.data = owner.data
        else:
            factors = owner.factors(4, spec)
            scale = torch.ones(1)
            if factors.in_scale is not None:
                scale = scale * factors.in_scale[row][None, :]
            if factors.out_scale is not None:
                scale = scale * factors.out_scale[row][:, None]
            parameter.data = (factors.weight * scale).detach()
    return plain


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("form", ["padded", "packed", "with a state"])
def test_each_example_meets_one_weight_at_all_steps(kind, method, form):
    plain, layer = make(kind, METHODS[method])
    lengths = [5, 3, 4, 1]
    rows = [torch.randn(length if form == "packed" else 5, 4) for length in lengths]
    axis = 1 if kind == "time_first" else 0
    x = pack_sequence(rows, enforce_sorted=False) if form == "packed" else torch.stack(rows, axis)
    state = None
    if form == "with a state":
        _, state = plain(x)
    with torch.no_grad(), own_frame(), lb.sampling(component=1 if method == "rank1" else "random"):
        y, final = layer(x, state)
        spec = current_sampling()
        y = pad_packed_sequence(y, batch_first=axis == 0)[0] if isinstance(y, PackedSequence) else y
        for row, length in enumerate(lengths if form == "packed" else [5] * 4):
            alone = with_weights_of(layer, plain, row, spec)
            one = rows[row].unsqueeze(axis)
            start = None
            if state is not None:
                parts = state if isinstance(state, tuple) else (state,)
                parts = tuple(part[:, row : row + 1].contiguous() for part in parts)
                start = parts if isinstance(state, tuple) else parts[0]
            expected, last = alone(one, start)
            found = y.select(axis, row)[:length]
            torch.testing.assert_close(found, expected.squeeze(axis), rtol=1e-4, atol=1e-5)
            for ours, theirs in zip(*(s if isinstance(s, tuple) else (s,) for s in (final, last))):
                torch.testing.assert_close(ours[:, row], theirs[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_input_without_a_batch_axis(kind):
    _, layer = make(kind, lb.MCDropout(0.4))
    x = torch.randn(5, 4)
    with torch.no_grad(), lb.sampling(seed=1):
        alone, _ = layer(x)
    with torch.no_grad(), lb.sampling(seed=1):
        batched, _ = layer(x.unsqueeze(1 if kind == "time_first" else 0))
    torch.testing.assert_close(alone, batched.squeeze(1 if kind == "time_first" else 0))


@pytest.mark.parametrize("kind", LAYERS)
def test_folds_and_trains(kind):
    _, layer = make(kind, lb.MCDropout(0.4))
    x = torch.randn(3, 5, 4)
    assert_folds(layer, x, batch_dim=1 if kind == "time_first" else 0)
    layer(x)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_the_mask_of_an_example_is_that_of_the_weights_posterior():
    """The mean over masks of a linear recurrence's first step is that of the plain layer."""
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.RNN(6, 2, nonlinearity="relu", batch_first=True), lb.MCDropout(0.5))
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.abs_() if "weight" in name or "bias" in name else None
        x = torch.rand(1, 1, 6)
        y, _ = layer(x.expand(20_000, 1, 6))
        with lb.sampling(mean=True):
            expected, _ = layer(x)
    assert_mean_close(y[:, 0], expected[0, 0])


def test_rows_of_a_bilinear_layer_that_share_a_draw_meet_their_second_inputs():
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.Bilinear(3, 2, 2), lb.MCDropout(0.5))
    left, right = torch.randn(5, 3), torch.randn(5, 2)
    masks = 2 * torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    plain = lb.point_estimate(layer)
    possible = [plain(left * mask, right).detach() for mask in masks]
    outputs = lb.predict(layer, (left, right), 6, seed=0).outputs
    for sample in outputs:
        assert min(float((sample - each).abs().max()) for each in possible) < 1e-5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (5, 3), ()], ids=str)
def test_bilinear_layers(shape, bias):
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.Bilinear(4, 3, 2, bias=bias), lb.MCDropout(0.5))
    left, right = torch.randn(*shape, 4), torch.randn(*shape, 3)
    with torch.no_grad(), own_frame():
        y = layer(left, right)
        masks = layer.weight.factors(shape[0] if shape else 1, current_sampling()).in_scale
    scale = masks[0] if not shape else masks.view(shape[0], *(1,) * (len(shape) - 1), 4)
    added = layer.bias if bias else None
    expected = nn.functional.bilinear(left * scale, right, layer.weight.posterior.weight, added)
    torch.testing.assert_close(y, expected)
    if shape:
        same = layer(left[:1].expand(4, *left.shape[1:]), right[:1].expand(4, *right.shape[1:]))
        assert len({tuple(row.flatten().tolist()) for row in same.detach()}) > 1
        with lb.sampling(estimator="weight"):
            same = layer(left[:1].expand(4, *left.shape[1:]), right[:1].expand(4, *right.shape[1:]))
        torch.testing.assert_close(same, same[:1].expand_as(same))


def test_only_scales_are_offered_beside_drawn_weights():
    with pytest.raises(ValueError, match=r"'rank1', 'weight'"):
        lb.MCDropout(estimator="local")
    with pytest.raises(ValueError, match=r"'flipout' does not apply to MeanField on LSTM; it offers \('weight',\)"):
        lb.bayesianize(nn.LSTM(3, 3), lb.MeanField(estimator="flipout"))
    assert lb.bayesianize(nn.LSTM(3, 3), lb.Rank1()).estimator == "weight"
    assert lb.bayesianize(nn.LSTM(3, 3), lb.MCDropout()).estimator == "rank1"
    assert lb.bayesianize(nn.LSTM(3, 3), lb.MCDropout(estimator="weight")).estimator == "weight"


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
@pytest.mark.parametrize("training", [True, False])
def test_alpha_dropout_stays_on_and_keeps_mean_and_variance(kind, training):
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(kind(0.3), nn.Linear(4, 4)), lb.MCDropout(p=None)).train(training)
    assert isinstance(model[0], DropoutLayer)
    x = torch.randn(4000, 4, 5)
    y = model[0](x)
    reference = getattr(nn.functional, "alpha_dropout" if kind is nn.AlphaDropout else "feature_alpha_dropout")
    other = reference(x, 0.3, training=True)
    for moment in (1, 2, 3):
        difference = (y**moment).mean((1, 2)) - (other**moment).mean((1, 2))
        assert_mean_close(difference, 0.0)
    torch.testing.assert_close(y.min(), other.min(), rtol=0.2, atol=0.2)
    dropped = torch.isclose(y, y[(x - y).abs() > 1].mode().values)
    assert abs(dropped.float().mean() - 0.3) < 0.03
    if kind is nn.FeatureAlphaDropout:
        assert torch.equal(dropped.all(2), dropped.any(2))
    with lb.sampling(mean=True):
        assert torch.equal(model[0](x), x)
