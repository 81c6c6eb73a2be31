"""Gradients of a scaling in plain torch, which define them."""

from __future__ import annotations

from torch import Tensor


def scale_slopes_reference(grad: Tensor, value: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """See `leanbayes.kernels.scale_slopes.scale_slopes`; in the dtype of the gradient."""
    return grad * scale, (grad * value).sum_to_size(scale.shape)
