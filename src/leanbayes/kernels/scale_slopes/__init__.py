"""Gradients of ``value * scale``, where positions share a scale, in one pass over memory instead of three."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels._autograd import direct, first_order_only
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.scale_slopes.reference import scale_slopes_reference
from leanbayes.kernels.scale_slopes.triton import scale_slopes_triton, scaled_layout

__all__ = ["scale_slopes", "scale_slopes_reference"]


def scale_slopes(grad: Tensor, value: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``value * scale`` in the value and in the scale, by a Triton kernel where that is quicker.

    Args:
        grad: Gradient of the product ``[*shape]``.
        value: What was scaled, of that shape.
        scale: Of as many axes, 1 along those that share a scale.

    Returns:
        ``grad * scale`` in the dtype of the gradient, and ``(grad * value).sum_to_size(scale.shape)``; by the kernel it
        is summed in float32 and once differentiable.
    """
    if torch.is_grad_enabled() or not _fits(grad, value, scale):
        return scale_slopes_reference(grad, value, scale)
    return direct(_slopes)(grad, value, scale)


def _fits(grad: Tensor, value: Tensor, scale: Tensor) -> bool:
    """Whether the kernel can take them, and has anything to sum."""
    if not fused(grad) or grad.shape != value.shape or grad.stride() != value.stride():
        return False
    layout = scaled_layout(value, scale)
    return layout is not None and layout.positions > 1


@first_order_only
@custom_op("leanbayes::scale_slopes", mutates_args=())
def _slopes(grad: Tensor, value: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    layout = scaled_layout(value, scale)
    assert layout is not None
    return scale_slopes_triton(grad, value, scale, layout)


@_slopes.register_fake
def _(grad: Tensor, value: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad), scale.new_empty(scale.shape, dtype=torch.float32)
