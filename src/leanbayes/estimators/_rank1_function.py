"""A product between two scales as one function of autograd, which keeps no scaled copy of its input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes.kernels.scale_slopes import scale_slopes
from leanbayes.noise import as_dtype
from leanbayes.ops import LinearOp


class Rank1Function(torch.autograd.Function):
    """``op(x * s, weight) * r`` with a backward that scales the input again.

    With g the gradient of the output, ``y = op(x * s, weight)`` and ``h = g * r``::

        grad weight = h (x * s)^T,   grad x = s * (weight^T h),   grad s = sum x * (weight^T h),   grad r = sum g * y

    Sums go over the positions that share a scale. An input that wants no gradient, with more positions in a row than
    there are outputs, is met by one product instead of the two: that of each row's own weight ``W s^T``, whose gradient
    ``h x^T`` leads to both. Beside the scales it keeps x and y, where autograd would keep the
    scaled input as well.
    """

    @staticmethod
    def forward(ctx: Any, op: LinearOp, x: Tensor, weight: Tensor, s: Tensor | None, r: Tensor | None) -> Tensor:
        """The product.

        Args:
            ctx: The context.
            op: The op.
            x: The input.
            weight: One weight for all rows, in the dtype of the product.
            s: Scale of the input's features, spread over its axes, in its dtype; None for ones.
            r: Scale of the output's features, spread over its axes, in the weight's dtype; None for ones.
        """
        ctx.op = op
        y = _product(op, x, weight, s)
        ctx.save_for_backward(x, weight, s, r, y if ctx.needs_input_grad[4] else None)
        return y if r is None else y * r

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        x, weight, s, r, y = ctx.saved_tensors
        op: LinearOp = ctx.op
        _, wants_x, wants_weight, wants_s, wants_r = ctx.needs_input_grad
        if wants_r and torch.is_grad_enabled():
            y = _product(op, x, weight, s)  # what was kept has no gradient of its own
        turned, grad_r = _through(grad, y, r, wants_r)
        if s is not None and not wants_x and wants_s and wants_weight and _takes_each_weight(op, x, weight, s):
            return None, None, *_by_each_weight(op, turned, x, weight, s), grad_r
        scaled = as_dtype(x if s is None else x * s, weight.dtype)
        with noise.exact_products(grad.device, weight.dtype):
            back, grad_weight = op.gradients(turned, scaled, weight, (wants_x or wants_s, wants_weight))
        if back is None:
            return None, None, grad_weight, None, grad_r
        grad_x, grad_s = _through(as_dtype(back, x.dtype), x, s, wants_s)
        return None, grad_x if wants_x else None, grad_weight, grad_s, grad_r


def _product(op: LinearOp, x: Tensor, weight: Tensor, s: Tensor | None) -> Tensor:
    scaled = as_dtype(x if s is None else x * s, weight.dtype)
    with noise.exact_products(x.device, weight.dtype):
        return op(scaled, weight)


def _takes_each_weight(op: LinearOp, x: Tensor, weight: Tensor, s: Tensor) -> bool:
    """Whether rows of vectors share scales, and have so many that a gradient for each row's weight is less to hold."""
    if x.dim() != 3 or not op.one_position(x[0]) or s.shape[:2] != (len(x), 1):
        return False
    return x.shape[1] >= op.out_features and x.dtype == weight.dtype


def _by_each_weight(op: LinearOp, grad: Tensor, x: Tensor, weight: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in the weight and in the scales ``[rows, 1, in]`` by those in the weights of the rows."""
    rows = len(x)
    with noise.exact_products(grad.device, weight.dtype):
        _, each = op.stacked_gradients(grad, x, weight.expand(rows, *weight.shape), (False, True))  # [rows, *shape]
    assert each is not None
    in_weight = (each * op.outer(weight.shape, s.squeeze(1), None)).sum(0)
    return in_weight, (each * weight).sum(1 + op.out_axis).unsqueeze(1)


def _through(grad: Tensor, value: Tensor, scale: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``value * scale`` in the value, and in the scale where it is wanted."""
    if scale is None or not wanted:
        return grad if scale is None else grad * scale, None
    in_value, in_scale = scale_slopes(grad, value, scale)
    return in_value, as_dtype(in_scale, scale.dtype)
