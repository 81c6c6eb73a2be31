"""Estimators as functions of autograd: right gradients, and nothing kept but what is said."""

import sys

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import leanbayes as lb
from leanbayes._sampling import Sampling, using
from leanbayes.estimators import _flipout_function, _local_function
from leanbayes.estimators._flipout_function import FlipoutFunction
from leanbayes.estimators._local_function import LocalFunction, Setting, Source
from leanbayes.estimators._rank1_function import Rank1Function
from leanbayes.kernels._dispatch import fused
from leanbayes.ops import Dense, DenseTransposed, op_for
from leanbayes.testing import sample_streams

LAYERS = {
    "dense": (lambda: nn.Linear(3, 2), (4, 3)),
    "sequence": (lambda: nn.Linear(3, 2), (4, 2, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 2, stride=2, padding=1, groups=2), (4, 2, 3)),
    "conv2d": (lambda: nn.Conv2d(2, 2, (3, 2), dilation=(1, 2), padding="same"), (2, 2, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 2, 2, stride=2, output_padding=1), (2, 2, 2)),
}
each_layer = pytest.mark.parametrize("kind", LAYERS)


def make(kind, dtype=torch.float64):
    build, shape = LAYERS[kind]
    module = build().to(dtype)
    op = op_for(module)
    assert op.has_gradients
    return op, torch.randn(shape, dtype=dtype), module.weight.detach(), module.bias.detach()


def leaves(*values):
    return [value.clone().requires_grad_() for value in values]


def local_arguments(kind):
    op, x, mean, bias = make(kind)
    var, bias_var = torch.rand_like(mean) + 0.1, torch.rand_like(bias)
    eps = torch.randn_like(op(x, mean))
    setting = Setting(op, eps.shape, 0, torch.float64, False)
    return setting, leaves(x, mean, var, bias, bias_var), eps


def naive_local(op, x, mean, var, bias, bias_var, eps):
    return op(x, mean, bias) + op(x.square(), var, bias_var).sqrt() * eps


@each_layer
def test_local_is_the_expression_and_so_are_its_gradients(kind):
    setting, values, eps = local_arguments(kind)

    def ours(*values):
        return LocalFunction.apply(setting, *values[:3], None, *values[3:], eps, None)

    y, expected = ours(*values), naive_local(setting.op, *values, eps)
    # The root of the floor is taken off.
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-7)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(expected, values, grad)):
        torch.testing.assert_close(found, truth)
    assert torch.autograd.gradcheck(ours, values)
    assert torch.autograd.gradgradcheck(ours, values)


@each_layer
def test_local_by_channels_of_the_variance_and_so_are_its_gradients(kind):
    setting, (x, mean, var, bias, bias_var), eps = local_arguments(kind)
    op = setting.op
    mixed = op.mixing(torch.rand(op.out_features, 2, dtype=torch.float64))
    if mixed is None:
        assert op.groups > 1
        return
    mix, mixing = mixed
    channels = var.detach().narrow(op.out_axis, 0, 2)
    values = leaves(x.detach(), mean.detach(), channels, mix, bias.detach(), bias_var.detach())

    def ours(*values):
        return LocalFunction.apply(setting._replace(mixing=mixing), *values, eps, None)

    def naive(x, mean, channels, mix, bias, bias_var):
        var = torch.einsum("or,r...->o...", mix.flatten(1), channels.movedim(op.out_axis, 0)).movedim(0, op.out_axis)
        return naive_local(op, x, mean, var, bias, bias_var, eps)

    y, expected = ours(*values), naive(*values)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-7)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(expected, values, grad)):
        torch.testing.assert_close(found, truth)
    assert torch.autograd.gradgradcheck(ours, values)


def test_local_without_mean_and_biases():
    setting, (x, _, var, _, _), eps = local_arguments("dense")
    assert torch.autograd.gradcheck(
        lambda x, var: LocalFunction.apply(setting, x, None, var, None, None, None, eps, None), [x, var]
    )


@each_layer
@pytest.mark.parametrize("n", [1, 2])
def test_flipout_is_the_expression_and_so_are_its_gradients(kind, n):
    op, x, mean, bias = make(kind)
    rows = x.shape[0]
    deviation, bias_deviation = torch.randn(n, *mean.shape).double(), torch.randn(n, *bias.shape).double()
    s_in = torch.randn(rows, op.in_features).double().sign()
    s_out = torch.randn(rows, op.out_features).double().sign()
    values = leaves(x, mean, deviation, bias, bias_deviation)

    def ours(*values):
        x, mean, deviation, bias, bias_deviation = values
        if n == 1:  # is given as it is
            deviation, bias_deviation = deviation.squeeze(0), bias_deviation.squeeze(0)
        signs = op.spread(s_in, x), op.spread(s_out, x)
        return FlipoutFunction.apply(op, n, x.shape, 0, x, mean, deviation, bias, bias_deviation, *signs)

    def naive(x, mean, deviation, bias, bias_deviation):
        # Row by row, each with its own weight.
        outputs = []
        for row in range(rows):
            s = row * n // rows
            signs = op.outer(mean.shape, s_in[row : row + 1], s_out[row : row + 1])[0]
            weight = mean + deviation[s] * signs
            outputs.append(op(x[row : row + 1], weight, bias + bias_deviation[s] * s_out[row]))
        return torch.cat(outputs)

    y, expected = ours(*values), naive(*values)
    torch.testing.assert_close(y, expected)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(expected, values, grad)):
        torch.testing.assert_close(found, truth)
    assert torch.autograd.gradcheck(ours, values)
    assert torch.autograd.gradgradcheck(ours, values)


def test_flipout_without_mean_and_signs():
    op, x, mean, bias = make("conv1d")
    x, deviation = leaves(x, mean)

    def ours(x, deviation):
        return FlipoutFunction.apply(op, 1, x.shape, 0, x, None, deviation, None, None, None, None)

    torch.testing.assert_close(ours(x, deviation), op(x, mean))
    assert torch.autograd.gradcheck(ours, [x, deviation])


@each_layer
@pytest.mark.parametrize("left_out", ["neither", "in", "out"])
def test_scales_give_the_expression_and_so_are_their_gradients(kind, left_out):
    op, x, weight, _ = make(kind)
    s = None if left_out == "in" else torch.randn(x.shape[0], op.in_features, dtype=torch.float64)
    r = None if left_out == "out" else torch.randn(x.shape[0], op.out_features, dtype=torch.float64)
    values = leaves(x, weight, *(each for each in (s, r) if each is not None))

    def spread(x, factors):
        given = iter(op.spread(factor, x) for factor in factors)
        return [None if each is None else next(given) for each in (s, r)]

    def ours(x, weight, *factors):
        return Rank1Function.apply(op, x, weight, *spread(x, factors))

    def naive(x, weight, *factors):
        # Row by row, each with its own weight.
        given = iter(factors)
        rows = [None if each is None else next(given) for each in (s, r)]
        outputs = []
        for row in range(x.shape[0]):
            own = [None if each is None else each[row : row + 1] for each in rows]
            outputs.append(op(x[row : row + 1], weight * op.outer(weight.shape, *own)[0]))
        return torch.cat(outputs)

    y, expected = ours(*values), naive(*values)
    torch.testing.assert_close(y, expected)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(expected, values, grad)):
        torch.testing.assert_close(found, truth)
    assert torch.autograd.gradcheck(ours, values)
    assert torch.autograd.gradgradcheck(ours, values)


@pytest.mark.parametrize("op", [Dense(3, 2), DenseTransposed(3, 2)], ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("wants_x", [False, True])
@pytest.mark.parametrize("left_out", ["neither", "out"])
def test_rows_of_many_vectors_have_the_same_gradients_whether_or_not_the_input_wants_one(op, wants_x, left_out):
    x = torch.randn(3, 5, 3, dtype=torch.float64).requires_grad_(wants_x)
    weight = torch.randn(2, 3, dtype=torch.float64)
    values = leaves(weight if op.out_axis == 0 else weight.T, torch.randn(3, 1, 3, dtype=torch.float64))
    r = leaves(torch.randn(3, 1, 2, dtype=torch.float64)) if left_out == "neither" else [None]
    values += [each for each in r if each is not None]

    def ours(weight, s, r=None):
        return Rank1Function.apply(op, x, weight, s, r)

    def naive(weight, s, r=None):
        y = op(x * s, weight)
        return y if r is None else y * r

    y = ours(*values)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(naive(*values), values, grad)):
        torch.testing.assert_close(found, truth)
    assert torch.autograd.gradgradcheck(ours, values)


def test_an_input_that_wants_no_gradient_takes_one_product_less(any_size):
    """Of the three products of a layer, that for the input's gradient is not needed for the scales'."""
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.BatchEnsemble(4)).double()
    counts = {}
    for wants in (False, True):
        x = torch.randn(4 * 6, 3, dtype=torch.float64).requires_grad_(wants)
        with lb.sampling(n=4, component="all"):
            y = layer(x).sum()
        with FlopCounterMode(display=False) as counter:
            y.backward()
        counts[wants] = counter.get_total_flops()
    assert 2 * counts[False] == counts[True]


@pytest.fixture
def any_size(monkeypatch):
    """Rank-1 layers scale again whatever is as small as it is here."""
    monkeypatch.setattr(sys.modules["leanbayes.estimators.rank1"], "_SMALL", 0)


RANK1 = {
    "factors": lb.Rank1(2, init_std=0.2, init_spread=0.3),
    "points": lb.BatchEnsemble(2, random_sign=0.5),
    "input": lb.Rank1(2, on="input", init_std=0.2),
    "output": lb.Rank1(2, on="output", init_std=0.2),
    "additive": lb.Rank1(2, form="additive", init_std=0.2),
}
each_rank1 = pytest.mark.parametrize("method", RANK1.values(), ids=RANK1)


@each_layer
@each_rank1
@pytest.mark.parametrize("n", [1, 2])
def test_rank1_layers_give_what_autograd_gives(kind, method, n, any_size, monkeypatch):
    layer = lb.nn.BayesianLayer(LAYERS[kind][0](), method).double()
    x = torch.randn(LAYERS[kind][1], dtype=torch.float64).repeat(2, *(1,) * (len(LAYERS[kind][1]) - 1))

    def run():
        with using(Sampling(n=n, streams=sample_streams(n))):
            y = layer(x.requires_grad_())
        return y, torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    y, grads = run()
    monkeypatch.setattr(sys.modules["leanbayes.estimators.rank1"], "writes_gradients", lambda op, x: False)
    expected, truths = run()
    torch.testing.assert_close(y, expected)
    for found, truth in zip(grads, truths):
        torch.testing.assert_close(found, truth)


def bayesian(kind, estimator, dtype=torch.float32, bias="same"):
    method = lb.MeanField(init_std=0.3, bias=bias, estimator=estimator)
    return lb.nn.BayesianLayer(LAYERS[kind][0](), method).to(dtype)


@each_layer
@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("n", [1, 2])
def test_layers_give_what_autograd_gives(kind, estimator, n, monkeypatch):
    layer = bayesian(kind, estimator, torch.float64)
    x = torch.randn(LAYERS[kind][1], dtype=torch.float64).repeat(2, *(1,) * (len(LAYERS[kind][1]) - 1))

    def run():
        with using(Sampling(n=n, streams=sample_streams(n))):
            y = layer(x.requires_grad_())
        return y, torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    y, grads = run()
    # By name: the functions hide the modules that they are in.
    monkeypatch.setattr(sys.modules[f"leanbayes.estimators.{estimator}"], "writes_gradients", lambda op, x: False)
    expected, truths = run()
    torch.testing.assert_close(y, expected)
    for found, truth in zip(grads, truths):
        torch.testing.assert_close(found, truth)


def kept_by(function, parameters):
    """Tensors that autograd keeps, less those of the size of a parameter or smaller."""
    kept = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = function()
    limit = max(p.numel() for p in parameters)
    return y, [(tuple(t.shape), t.dtype) for t in kept if t.numel() > limit]


BIG = {"sequence": (8, 5, 3), "conv2d": (8, 2, 6, 6)}


@pytest.mark.parametrize("kind", BIG)
@pytest.mark.parametrize("low", [False, True])
def test_local_keeps_its_input_and_one_tensor_of_the_outputs_size(kind, low):
    layer = bayesian(kind, "local")
    x = torch.randn(BIG[kind], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        y, kept = kept_by(lambda: layer(x), layer.parameters())
    dtype = torch.bfloat16 if low else torch.float32
    assert y.dtype == dtype
    assert kept == [(tuple(x.shape), dtype), (tuple(y.shape), dtype)]


@pytest.mark.parametrize("kind", BIG)
@pytest.mark.parametrize("low", [False, True])
def test_flipout_keeps_its_input_and_signs(kind, low):
    layer = bayesian(kind, "flipout")
    x = torch.randn(BIG[kind], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        y, kept = kept_by(lambda: layer(x), layer.parameters())
    dtype = torch.bfloat16 if low else torch.float32
    kept = [(tuple(size for size in shape if size > 1), dtype) for shape, dtype in kept]
    signs = [shape for shape, _ in kept if len(shape) == 2]
    assert [item for item in kept if item[0] not in signs] == [(tuple(x.shape), dtype)]
    assert all(shape in ((8, x.shape[1 if x.dim() == 4 else -1]), (8, 2)) for shape in signs)


@pytest.mark.parametrize("kind", BIG)
@pytest.mark.parametrize("low", [False, True])
def test_rank1_keeps_its_input_and_the_output_of_its_product(kind, low, any_size):
    layer = lb.nn.BayesianLayer(LAYERS[kind][0](), lb.BatchEnsemble(2))
    x = torch.randn(BIG[kind], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        y, kept = kept_by(lambda: layer(x), [x[:, :1]])
    assert kept == [(tuple(x.shape), torch.float32), (tuple(y.shape), y.dtype)]  # for the gradients of both scales


def test_small_inputs_of_rank1_layers_are_left_to_autograd():
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.BatchEnsemble(2))
    assert "Rank1Function" not in str(layer(torch.randn(4, 3)).grad_fn.next_functions)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("kind", BIG)
def test_compiled_steps_keep_no_more(kind, estimator):
    torch._dynamo.reset()
    layer = bayesian(kind, estimator)
    x = torch.randn(BIG[kind])
    # As in a network: the input comes from something that could be computed again.
    scale = nn.Parameter(torch.ones(()))
    compiled = torch.compile(lambda x: layer(torch.sigmoid(x * scale)), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        y, kept = kept_by(lambda: compiled(x), layer.parameters())
    y.float().square().sum().backward()
    in_low = [torch.Size(shape).numel() for shape, dtype in kept if dtype == torch.bfloat16]
    outputs = [y.numel()] if estimator == "local" else []
    assert sorted(in_low) == sorted([x.numel(), *outputs])
    # The rest is the input itself, and what the sigmoid keeps.
    assert all(shape == tuple(x.shape) or len(shape) == 2 for shape, dtype in kept if dtype != torch.bfloat16)
    assert scale.grad.isfinite() and all(p.grad.isfinite().all() for p in layer.parameters())
    torch._dynamo.reset()


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_no_gradients_are_computed_for_what_does_not_train(estimator):
    layer = bayesian("conv2d", estimator)
    x = torch.randn(BIG["conv2d"])
    layer.weight.posterior.raw_std.requires_grad_(False)
    layer(x).sum().backward()
    assert x.grad is None and layer.weight.posterior.raw_std.grad is None
    assert layer.weight.posterior.loc.grad is not None
    layer.requires_grad_(False)
    assert not layer(x).requires_grad
    layer(x.requires_grad_()).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize("kind", ["dense", "conv2d"])
def test_half_precision_has_the_gradients_of_full_precision(kind, estimator):
    layer = bayesian(kind, estimator)
    x = torch.randn(LAYERS[kind][1], requires_grad=True)

    def run(**options):
        with torch.autocast("cpu", **options), using(Sampling(n=1, streams=sample_streams(1))):
            y = layer(x)
        return torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])

    expected = run(enabled=False)
    for dtype, tolerance in ((torch.bfloat16, 0.05), (torch.float16, 0.02)):
        for found, truth in zip(run(dtype=dtype), expected):
            assert found.dtype == truth.dtype
            assert (found - truth).norm() < tolerance * truth.norm()


# Raised inside torch, of its own rules for forward mode.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_other_kinds_of_differentiation_go_through_autograd(estimator):
    layer = bayesian("dense", estimator, torch.float64, bias="point")
    x = torch.randn(4, 3, dtype=torch.float64)

    def output(x):
        with using(Sampling(n=1, streams=sample_streams(1))):
            return layer(x)

    x.requires_grad_()
    (expected,) = torch.autograd.grad(output(x).sum(), x)
    x = x.detach()
    torch.testing.assert_close(torch.func.grad(lambda x: output(x).sum())(x), expected)
    direction = torch.randn_like(x)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(output(forward_ad.make_dual(x, direction))).tangent
    torch.testing.assert_close(tangent.sum(), (expected * direction).sum())


def test_a_sequence_first_input_has_the_noise_of_its_rows():
    layer = bayesian("sequence", "local")
    x = torch.randn(5, 4, 3)
    outputs = []
    for samples, rows in ((2, slice(None)), (1, slice(0, 2))):
        with torch.no_grad(), using(Sampling(n=samples, streams=sample_streams(samples), batch_dim=1)):
            outputs.append(layer(x[:, rows]))
    torch.testing.assert_close(outputs[0][:, :2], outputs[1])


@pytest.mark.skipif(not fused(torch.zeros(1)), reason="needs kernels")
def test_the_noise_of_keys_is_that_which_the_gradients_are_for():
    setting, (x, mean, var, bias, bias_var), _ = local_arguments("conv2d")
    setting = setting._replace(dtype=torch.float32)
    keys = torch.tensor([3])
    values = leaves(*(value.detach().float() for value in (x, mean, var, bias, bias_var)))
    zeros = torch.zeros_like(setting.op(values[0], values[1]))
    eps = _local_function.draw_output(zeros, zeros + 1, Source(None, keys), setting, False)[0]
    y = LocalFunction.apply(setting, *values[:3], None, *values[3:], None, keys)
    expected = naive_local(setting.op, *values, eps)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(y)
    for found, truth in zip(torch.autograd.grad(y, values, grad), torch.autograd.grad(expected, values, grad)):
        torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-3)
    without_slope = _local_function.forward(*values[:3], None, *values[3:], Source(None, keys), setting, False)
    assert torch.equal(without_slope[0], y) and without_slope[1].numel() == 0


def test_draws_without_gradients_are_those_with():
    op, x, mean, bias = make("dense")
    signs = torch.ones(4, 3).double(), torch.ones(4, 2).double()
    arguments = (op, 1, x.shape, 0, x, mean, mean, bias, None, *signs)
    with torch.no_grad():
        assert torch.equal(_flipout_function.forward(*arguments), FlipoutFunction.apply(*arguments))
