"""The epilogue as a Triton kernel; `reference.py` says what it computes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes.kernels._philox import normal4
from leanbayes.kernels._triton import constexpr, jit, tl
from leanbayes.kernels.local_epilogue.reference import FLOOR, outputs_like

_FLOOR = constexpr(FLOOR)
_FLOOR_ROOT = constexpr(math.sqrt(FLOOR))
# Counters of a program; each makes the noise of 4 elements.
_COUNTERS = 256


def local_epilogue_triton(
    mean: Tensor | None, var: Tensor, keys: Tensor, dtype: torch.dtype, with_slope: bool = True
) -> tuple[Tensor, Tensor]:
    """See `leanbayes.kernels.local_epilogue.local_epilogue`."""
    y, slope = outputs_like(var if mean is None else mean, keys.shape[0], dtype, with_slope)
    if not y.numel():
        return y, slope
    length = y.numel() // keys.shape[0]
    blocks = -(-length // (4 * _COUNTERS))
    _kernel[(blocks * keys.shape[0],)](
        None if mean is None else _laid_out_as(mean, y),
        _laid_out_as(var, y),
        keys,
        y,
        slope,
        length,
        blocks,
        WITH_MEAN=mean is not None,
        WITH_SLOPE=with_slope,
        COUNTERS=_COUNTERS,
        num_warps=4,
    )
    return y, slope


def _laid_out_as(value: Tensor, like: Tensor) -> Tensor:
    same = all(a == b or size == 1 for a, b, size in zip(value.stride(), like.stride(), like.shape))
    return value if same else torch.empty_like(like, dtype=value.dtype).copy_(value)


@jit
def _kernel(
    mean_ptr,
    var_ptr,
    keys_ptr,
    y_ptr,
    slope_ptr,
    length,
    blocks,
    WITH_MEAN: constexpr,
    WITH_SLOPE: constexpr,
    COUNTERS: constexpr,
):
    """One block of one sample's run of `length` elements, in the order of memory."""
    sample = tl.program_id(0) // blocks
    # Tensors may have more than 2^31 elements.
    block = (tl.program_id(0) % blocks).to(tl.int64)
    inside = tl.arange(0, 4 * COUNTERS)
    mask = inside < length - block * (4 * COUNTERS)
    at = sample.to(tl.int64) * length + block * (4 * COUNTERS) + inside

    n0, n1, n2, n3 = normal4(tl.load(keys_ptr + sample), block * COUNTERS + tl.arange(0, COUNTERS))
    eps = tl.interleave(tl.interleave(n0, n2), tl.interleave(n1, n3))
    var = tl.load(var_ptr + at, mask=mask, other=0.0).to(tl.float32)
    # Comparisons let a NaN go on; without variance there is no noise at all, however roots are rounded.
    clamped = tl.where(var < _FLOOR, _FLOOR, var)
    inverse_root = tl.rsqrt(clamped)
    y = tl.where(var <= _FLOOR, 0.0, clamped * inverse_root - _FLOOR_ROOT) * eps
    if WITH_MEAN:
        y += tl.load(mean_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)
    if WITH_SLOPE:
        slope = tl.where(var < _FLOOR, 0.0, 0.5 * inverse_root) * eps
        tl.store(slope_ptr + at, slope.to(slope_ptr.dtype.element_ty), mask=mask)
