"""Local reparameterisation: draw the output from its own mean and variance."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators._local_function import (
    LocalFunction,
    Setting,
    Source,
    draw_output,
    forward,
    moments_of_output,
    output_variance,
)
from leanbayes.estimators._written_out import (
    cast,
    to_keep,
    wants_gradients,
    writes_gradients,
)
from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.kernels._dispatch import fused
from leanbayes.ops import LinearOp
from leanbayes.parameter import RandomParameter


@register_estimator("local", needs="moments", one_weight=False, exact_on_vectors=True, preference=3)
def local(call: Call) -> Tensor:
    """``op(x, mean) + sqrt(op(x^2, var)) * e`` (Kingma et al. 2015), exact for one vector and a Gaussian weight.

    Every output element gets its own noise: on sequences and images one example then meets another weight at each
    position, so the joint distribution of its outputs is approximated. No weight is drawn that could be used again. For
    the backward pass x and one tensor of the output's size are kept; the squares are computed again.
    """
    op = call.op
    weight = _moments(call)
    bias_mean, bias_var = _bias_moments(call.bias, call.zero_mean)
    inner = None if weight.mean is None else bias_mean
    by = _by_hand if writes_gradients(op, call.x) else _by_autograd
    y = by(call, weight, inner, bias_var)
    return y if weight.mean is not None or bias_mean is None else op.add_bias(y, bias_mean, call.batch_dim)


class _Moments(NamedTuple):
    """Of a weight: its mean (None for zero) and variance, as a product ``mix @ var`` where `mixing` applies `mix`."""

    mean: Tensor | None
    var: Tensor
    mix: Tensor | None = None
    mixing: LinearOp | None = None


def _moments(call: Call) -> _Moments:
    thin = call.weight.thin_variance(call.op)
    if thin is not None:
        return _Moments(None if call.zero_mean else call.weight.mean(), *thin)
    moments = call.weight.moments()
    return _Moments(None if call.zero_mean else moments.mean, moments.var)


class _Products(NamedTuple):
    """What the products of a layer take, in the precision that they are computed in, see `moments_of_output`."""

    x: Tensor
    mean: Tensor | None
    var: Tensor
    mix: Tensor | None
    bias_mean: Tensor | None
    bias_var: Tensor | None


def _products(
    call: Call, weight: _Moments, bias_mean: Tensor | None, bias_var: Tensor | None
) -> tuple[_Products, Setting]:
    low = noise.autocast_dtype(call.x)
    x = call.x if low is None else call.x.to(low)
    # float16 has no room for squares, and without autocast variances are asked for in full.
    wide = low if low == torch.bfloat16 else noise.compute_dtype(x.dtype)
    var, mix = weight.var.to(wide), cast(weight.mix, wide)
    shape = call.op.output_shape(x, var if mix is None else call.weight.mean())
    values = _Products(x, cast(weight.mean, low), var, mix, cast(bias_mean, low), cast(bias_var, wide))
    return values, _setting(call, shape, x.dtype, weight.mixing)


def _by_hand(call: Call, weight: _Moments, bias_mean: Tensor | None, bias_var: Tensor | None) -> Tensor:
    """What keeps x and one tensor of the output's size."""
    values, setting = _products(call, weight, bias_mean, bias_var)
    source = _source(call, setting.shape, values.var)
    if wants_gradients(*values):
        x, *others = values
        return LocalFunction.apply(setting, to_keep(call.op, x), *others, *source)
    return forward(*values, source, setting, False)[0]


class OutputMoments(NamedTuple):
    """Mean (None for zero) and variance of a layer's output."""

    mean: Tensor | None
    var: Tensor


def output_moments(call: Call) -> OutputMoments:
    """Moments of the output of every row, where no gradients are wanted."""
    weight, (bias_mean, bias_var) = _moments(call), _bias_moments(call.bias, call.zero_mean)
    values, setting = _products(call, weight, bias_mean, bias_var)
    mean, var, _ = moments_of_output(*values, setting)
    if mean is None and values.bias_mean is not None:
        mean = call.op.add_bias(torch.zeros_like(var, dtype=setting.dtype), values.bias_mean, call.batch_dim)
    return OutputMoments(mean, var)


def draw_from(call: Call, moments: OutputMoments) -> Tensor:
    """A draw for every row of the moments."""
    mean, var = moments
    low = noise.autocast_dtype(call.x)
    setting = _setting(call, tuple(var.shape), call.x.dtype if low is None else low, None)
    return draw_output(mean, var, _source(call, setting.shape, var), setting, False)[0]


def _by_autograd(call: Call, weight: _Moments, bias_mean: Tensor | None, bias_var: Tensor | None) -> Tensor:
    """What any op and any kind of differentiation can do."""
    variance = _variance(call.op, call.x, weight, bias_var)
    y = None if weight.mean is None else call.op(call.x, weight.mean, bias_mean)
    dtype = _output_dtype(call.x, call.op, call.weight) if y is None else y.dtype
    setting = _setting(call, variance.shape, dtype, weight.mixing)
    source = _source(call, variance.shape, variance)
    # Of an expression in torch's own functions autograd finds the slope by itself.
    return draw_output(y, variance, source, setting, source.keys is not None and torch.is_grad_enabled())[0]


def _setting(call: Call, shape: tuple[int, ...], dtype: torch.dtype, mixing: LinearOp | None) -> Setting:
    return Setting(call.op, shape, call.batch_dim, dtype, call.spec.streams is not None, mixing)


def _source(call: Call, shape: Sequence[int], like: Tensor) -> Source:
    """Keys where a kernel makes the noise, else noise, drawn row by row."""
    if fused(like) and reverse_mode_alone():
        return Source(None, noise.keys(1 if call.spec.streams is None else call.spec.n, like, call.spec))
    axis = call.batch_dim
    rows = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    eps = noise.normal(rows, like, call.spec)
    return Source(eps.movedim(0, axis) if axis else eps, None)


def _bias_moments(bias: RandomParameter | Tensor | None, zero_mean: bool) -> tuple[Tensor | None, Tensor | None]:
    if not isinstance(bias, RandomParameter):
        return bias, None
    moments = bias.moments()
    return None if zero_mean else moments.mean, moments.var


def _variance(op: LinearOp, x: Tensor, weight: _Moments, bias_var: Tensor | None) -> Tensor:
    # float16 has no room for squares: it is computed in float32. bfloat16 has, so its autocast stays on.
    var, mix = weight.var, weight.mix
    if not op.index_input:
        x = x.to(noise.compute_dtype(x.dtype))
        var, mix = var.to(x.dtype), cast(mix, x.dtype)
    device = var.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    with torch.autocast(device, enabled=False) if half else nullcontext():
        result, _ = output_variance(op, weight.mixing, op.square(x), var, mix, bias_var)
    return result.to(noise.compute_dtype(result.dtype))


def _output_dtype(x: Tensor, op: LinearOp, weight: RandomParameter) -> torch.dtype:
    dtype = weight.dtype if op.index_input else x.dtype
    device = x.device.type
    if torch.is_autocast_enabled(device) and dtype == torch.float32:
        return torch.get_autocast_dtype(device)
    return dtype
