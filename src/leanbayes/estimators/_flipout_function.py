"""Flipout as one function of autograd, which keeps its input and the signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes.estimators._written_out import flat_as, with_shape
from leanbayes.ops import LinearOp, rows_per_sample


def forward(
    op: LinearOp,
    n: int,
    shape: torch.Size,
    batch_dim: int,
    x: Tensor,
    mean: Tensor | None,
    deviation: Tensor,
    bias: Tensor | None,
    bias_deviation: Tensor | None,
    s_in: Tensor | None,
    s_out: Tensor | None,
) -> Tensor:
    """``op(x, mean, bias) + (op(x * s_in, deviation) + bias_deviation) * s_out``, the first term where there is a mean.

    Args:
        op: The op.
        n: Number of samples.
        shape: Shape of the input.
        batch_dim: Axis of its rows.
        x: The input, or a flat view of it.
        mean: The mean weight, None to leave it out.
        deviation: Drawn deviations from it ``[n, *shape]``, ``[*shape]`` of a single sample.
        bias: ``[out]``, used where there is a mean.
        bias_deviation: ``[n, out]``, ``[out]`` of a single sample.
        s_in: Signs of the input's features, as the op spreads them.
        s_out: Signs of the output's features, likewise.
    """
    # All have the dtype that they are to be computed in.
    with noise.exact_products(x.device, x.dtype):
        viewed = with_shape(x, shape)
        signed = viewed if s_in is None else viewed * s_in
        if n == 1:
            z = op(signed, deviation, bias_deviation)
        else:
            rows_per_sample(shape[batch_dim], n)
            z = op.stacked(signed, deviation, bias_deviation, batch_dim)
        if mean is None:
            return z if s_out is None else z * s_out
        y = with_shape(op(x, mean, bias), z.shape)
        return y + z if s_out is None else torch.addcmul(y, z, s_out)


class FlipoutFunction(torch.autograd.Function):
    """`forward` with a backward that signs the input again.

    With g the gradient of the output and ``h = g * s_out``::

        grad mean = g x^T,   grad deviation = h (x * s_in)^T,   grad x = mean^T g + s_in * (deviation^T h)

    The perturbation itself is not needed, as signs have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        op: LinearOp,
        n: int,
        shape: torch.Size,
        batch_dim: int,
        x: Tensor,
        mean: Tensor | None,
        deviation: Tensor,
        bias: Tensor | None,
        bias_deviation: Tensor | None,
        s_in: Tensor | None,
        s_out: Tensor | None,
    ) -> Tensor:
        """See `forward`."""
        ctx.op, ctx.n, ctx.shape, ctx.batch_dim = op, n, shape, batch_dim
        ctx.save_for_backward(x, mean, deviation, s_in, s_out)
        return forward(op, n, shape, batch_dim, x, mean, deviation, bias, bias_deviation, s_in, s_out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        x, mean, deviation, s_in, s_out = ctx.saved_tensors
        op, n, axis = ctx.op, ctx.n, ctx.batch_dim
        _, _, _, _, wants_x, wants_mean, wants_deviation, wants_bias, wants_bias_deviation, _, _ = ctx.needs_input_grad
        with noise.exact_products(grad.device):
            viewed = with_shape(x, ctx.shape)
            # In another order than before, lest a compiler finds it to be that of the forward pass and keeps it.
            signed = viewed if s_in is None else s_in * viewed
            turned = grad if s_out is None else grad * s_out
            wanted = wants_x, wants_deviation
            if n == 1:
                grad_x, d_deviation = op.gradients(turned, signed, deviation, wanted)
            else:
                grad_x, d_deviation = op.stacked_gradients(turned, signed, deviation, wanted, axis)
            from_mean, d_mean = None, None
            if mean is not None:
                from_mean, d_mean = op.gradients(flat_as(op, x, grad), x, mean, (wants_x, wants_mean))
            return (
                None,
                None,
                None,
                None,
                None if grad_x is None else flat_as(op, x, _input_gradient(from_mean, grad_x, s_in)),
                d_mean,
                d_deviation,
                op.bias_gradient(grad) if wants_bias else None,
                _bias_gradient(op, turned, n, axis) if wants_bias_deviation else None,
                None,
                None,
            )


def _bias_gradient(op: LinearOp, grad: Tensor, n: int, batch_dim: int) -> Tensor:
    return op.bias_gradient(grad) if n == 1 else op.stacked_bias_gradient(grad, n, batch_dim)


def _input_gradient(from_mean: Tensor | None, from_deviation: Tensor, signs: Tensor | None) -> Tensor:
    if from_mean is None:
        return from_deviation if signs is None else from_deviation * signs
    from_mean = with_shape(from_mean, from_deviation.shape)
    return from_mean + from_deviation if signs is None else torch.addcmul(from_mean, from_deviation, signs)
