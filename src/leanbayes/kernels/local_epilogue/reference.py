"""The epilogue in plain torch, which defines it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes.kernels._philox import philox_normal_reference

# Keeps the square root and its derivative finite where the variance is zero, or under it as fast convolutions may
# leave it. A power of 4 near the published 1e-16: its root is exact in every dtype, so that taking it off again leaves
# no noise where there is no variance.
FLOOR = 2.0**-54


def local_epilogue_reference(
    mean: Tensor | None, var: Tensor, keys: Tensor, dtype: torch.dtype, with_slope: bool = True
) -> tuple[Tensor, Tensor]:
    """See `leanbayes.kernels.local_epilogue.local_epilogue`."""
    y, slope = outputs_like(var if mean is None else mean, keys.shape[0], dtype, with_slope)
    flat = philox_normal_reference(keys, y.numel() // keys.shape[0]).flatten()
    eps = flat.as_strided(y.shape, y.stride())  # position by position in memory
    drawn, drawn_slope = epilogue(mean, var, eps, dtype, with_slope)
    y.copy_(drawn)
    if with_slope:
        slope.copy_(drawn_slope)
    return y, slope


def epilogue(
    mean: Tensor | None, var: Tensor, eps: Tensor, dtype: torch.dtype, with_slope: bool = True
) -> tuple[Tensor, Tensor]:
    """``mean + (sqrt(max(var, FLOOR)) - sqrt(FLOOR)) * eps`` for given noise, and its derivative by the variance.

    Args:
        mean: Means, None for zeros.
        var: Variances of the same shape.
        eps: Noise of that shape in float32, or float64.
        dtype: The output's dtype.
        with_slope: Whether the derivative is wanted.

    Returns:
        The output, and ``eps / (2 sqrt(var))``, 0 under the floor, in the dtype of `slope_dtype`, or an empty tensor.
    """
    var = var.to(eps.dtype)
    root = var.clamp_min(FLOOR).sqrt()
    y = (root - math.sqrt(FLOOR)) * eps
    if mean is not None:
        y = mean + y
    return y.to(dtype), slope_of(var, root, eps).to(slope_dtype(dtype)) if with_slope else y.new_empty(0)


def slope_of(var: Tensor, root: Tensor, eps: Tensor) -> Tensor:
    """The derivative of the output by the variance, that of a clamped root: all of it at the floor, none below."""
    return torch.where(var >= FLOOR, eps / (2 * root), 0.0)


def slope_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the derivative: the activation's, but for float16, which has no room for noise over a small root."""
    return torch.float32 if dtype == torch.float16 else dtype


def outputs_like(like: Tensor, samples: int, dtype: torch.dtype, with_slope: bool) -> tuple[Tensor, Tensor]:
    """Room for an output and its slope in the memory layout of `like`, samples outermost where there are several."""
    y = torch.empty_like(like, dtype=dtype)
    if samples > 1 and y.stride(0) * y.shape[0] != y.numel():
        y = torch.empty(like.shape, dtype=dtype, device=like.device)
    if not with_slope:
        return y, y.new_empty(0)
    return y, torch.empty_like(y, dtype=slope_dtype(dtype))
