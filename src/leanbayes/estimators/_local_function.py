"""Local reparameterisation as one function of autograd, which keeps its input and one tensor of the output's size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes.estimators._written_out import flat_as, with_shape
from leanbayes.kernels._autograd import direct
from leanbayes.kernels.local_epilogue import FLOOR, epilogue, local_epilogue, slope_of
from leanbayes.ops import LinearOp


class Setting(NamedTuple):
    """What is no tensor.

    Attributes:
        op: The op.
        shape: The output's shape; where the input is given flat, so are products.
        batch_dim: Axis of the rows.
        dtype: The output's dtype.
        by_sample: Whether each sample has a key of its own.
        mixing: What maps the channels of a variance to the outputs, where it is a product of thin matrices.
    """

    op: LinearOp
    shape: tuple[int, ...]
    batch_dim: int
    dtype: torch.dtype
    by_sample: bool
    mixing: LinearOp | None = None


class Source(NamedTuple):
    """Where noise comes from: drawn before, in the output's shape, or made by a kernel from keys ``[1 or samples]``."""

    eps: Tensor | None
    keys: Tensor | None


def draw_output(
    mean: Tensor | None, var: Tensor, source: Source, setting: Setting, with_slope: bool
) -> tuple[Tensor, Tensor]:
    """A draw for means and variances of an output, and its slope by the variance where that is asked for."""
    if source.keys is None:
        assert source.eps is not None
        return epilogue(mean, var, source.eps, setting.dtype, with_slope)
    axis, run = setting.batch_dim, direct(local_epilogue)
    if not setting.by_sample or axis == 0:
        return run(mean, var, source.keys, setting.dtype, with_slope)
    # A sample's noise is counted in its own memory, which must then not depend on how many samples there are.
    mean = None if mean is None else mean.movedim(axis, 0).contiguous()
    y, slopes = run(mean, var.movedim(axis, 0).contiguous(), source.keys, setting.dtype, with_slope)
    return y.movedim(0, axis), slopes.movedim(0, axis) if with_slope else slopes


def output_variance(
    op: LinearOp,
    mixing: LinearOp | None,
    squares: Tensor,
    var: Tensor,
    mix: Tensor | None,
    bias_var: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """``op(squares, var)``; of a variance ``mix @ var`` of rank r, by r channels that are given beside it."""
    if mixing is None or mix is None:
        return op(squares, var, bias_var), None
    channels = op(squares, var)
    return mixing(channels, mix, bias_var), channels


def moments_of_output(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor,
    mix: Tensor | None,
    bias_mean: Tensor | None,
    bias_var: Tensor | None,
    setting: Setting,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """The output's mean ``op(x, mean)``, its variance ``output_variance(x^2)``, and channels of that."""
    op = setting.op
    # All have the dtype that they are to be computed in.
    with noise.exact_products(x.device, x.dtype, var.dtype):
        y = None if mean is None else with_shape(op(x, mean, bias_mean), setting.shape)
        squares = op.square(x.to(var.dtype))
        variance, channels = output_variance(op, setting.mixing, squares, var, mix, bias_var)
    return y, with_shape(variance, setting.shape), channels


def forward(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor,
    mix: Tensor | None,
    bias_mean: Tensor | None,
    bias_var: Tensor | None,
    source: Source,
    setting: Setting,
    with_slope: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A draw of the output, its slope by the variance, and channels of the variance."""
    y, variance, channels = moments_of_output(x, mean, var, mix, bias_mean, bias_var, setting)
    return *draw_output(y, variance, source, setting, with_slope), channels


class LocalFunction(torch.autograd.Function):
    """`forward` with a backward that computes the squares again.

    With ``d = eps / (2 sqrt(v))`` kept of the output's variance v, and g the gradient of the output::

        grad mean = g x^T,   grad var = (g d) (x^2)^T,   grad x = mean^T g + 2 x (var^T (g d))
    """

    @staticmethod
    def forward(
        ctx: Any,
        setting: Setting,
        x: Tensor,
        mean: Tensor | None,
        var: Tensor,
        mix: Tensor | None,
        bias_mean: Tensor | None,
        bias_var: Tensor | None,
        eps: Tensor | None,
        keys: Tensor | None,
    ) -> Tensor:
        """See `forward`."""
        y, slope, channels = forward(x, mean, var, mix, bias_mean, bias_var, Source(eps, keys), setting, True)
        ctx.setting = setting
        ctx.save_for_backward(x, mean, var, mix, bias_var, slope, channels)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        x, mean, var, mix, bias_var, slope, channels = ctx.saved_tensors
        op, mixing = ctx.setting.op, ctx.setting.mixing
        grad, slope = flat_as(op, x, grad), flat_as(op, x, slope)
        _, wants_x, wants_mean, wants_var, wants_mix, wants_bias_mean, wants_bias_var, _, _ = ctx.needs_input_grad
        with noise.exact_products(grad.device):
            wide = x.to(var.dtype)
            # Not as `op.square` does it, lest a compiler finds it to be that of the forward pass and keeps it.
            squares = wide.square()
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                slope, channels = _slope_again(op, mixing, squares, var, mix, bias_var, slope)
            by_variance = grad_var = grad.to(var.dtype) * slope.to(var.dtype)
            d_mix = None
            if mixing is not None:
                by_variance, d_mix = mixing.gradients(grad_var, channels, mix, (True, wants_mix))
            from_var, d_var = op.gradients(by_variance, squares, var, (wants_x, wants_var))
            from_mean, d_mean = None, None
            if mean is not None:
                from_mean, d_mean = op.gradients(grad, x, mean, (wants_x, wants_mean))
            return (
                None,
                _input_gradient(x, wide, from_mean, from_var) if wants_x else None,
                d_mean,
                d_var,
                d_mix,
                op.bias_gradient(grad) if wants_bias_mean else None,
                op.bias_gradient(grad_var) if wants_bias_var else None,
                None,
                None,
            )


def _input_gradient(x: Tensor, wide: Tensor, from_mean: Tensor | None, from_var: Tensor | None) -> Tensor:
    assert from_var is not None
    if from_mean is None:
        return (2 * wide * from_var).to(x.dtype)
    if wide.dtype == x.dtype:
        return torch.addcmul(from_mean, x, from_var, value=2)
    return from_mean + (2 * wide * from_var).to(x.dtype)


def _slope_again(
    op: LinearOp,
    mixing: LinearOp | None,
    squares: Tensor,
    var: Tensor,
    mix: Tensor | None,
    bias_var: Tensor | None,
    slope: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """What was kept as functions of input and variances, for second derivatives; noise is taken from the slope kept."""
    variance, channels = output_variance(op, mixing, squares, var, mix, bias_var)
    variance = noise.full_precision(variance)
    root = variance.clamp_min(FLOOR).sqrt()
    return slope_of(variance, root, (2 * root * slope).detach()), channels
