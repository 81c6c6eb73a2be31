"""Parts of kernels that measure how far a weight's Gaussian posterior is from a Gaussian prior."""

from __future__ import annotations

import math

from torch import Tensor

from leanbayes.kernels._launch import scratch
from leanbayes.kernels._triton import FAST_MATH, constexpr, jit, libdevice, tl

_SUM_BLOCK = 1024


@jit
def distance_of(mean, centre, prior_mean, offset, mask, CENTRED: constexpr):
    """How far means are from the prior's."""
    if CENTRED:
        return mean - tl.load(centre + offset, mask=mask, other=0.0).to(tl.float32)
    else:
        return mean - prior_mean


@jit
def divergence(std, distance, half_precision, constant, mask):
    """The divergence of each element, 0 where masked."""
    # The fast one is off by 2^-22 at most next to 1, and relative to its value elsewhere.
    if FAST_MATH:
        log = libdevice.fast_logf(std)
    else:
        log = tl.log(std)
    return tl.where(mask, (std * std + distance * distance) * half_precision - log + constant, 0.0)


@jit
def std_slope(std, half_precision, mask):
    """Its derivative in the standard deviations."""
    # The fast division is off by two units in the last place at most.
    inverse = libdevice.fast_dividef(1.0, std) if FAST_MATH else 1.0 / std
    return tl.where(mask, 2.0 * half_precision * std - inverse, 0.0)


@jit
def _sum(parts, out, count, BLOCK: constexpr):
    """The sum of all parts, in float64 and always in the same order."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        position = start + tl.arange(0, BLOCK)
        total += tl.load(parts + position, mask=position < count, other=0.0).to(tl.float64)
    tl.store(out, tl.sum(total, 0).to(tl.float32))


def sum_of_tiles(parts: Tensor) -> Tensor:
    """The divergence of a weight from those of its tiles; the device must be the current one."""
    if parts.numel() == 1:
        return parts.view(())
    out = scratch((), parts)
    _sum[(1,)](parts, out, parts.numel(), BLOCK=_SUM_BLOCK)
    return out


def prior_arguments(prior_mean: float, prior_std: float) -> dict[str, float]:
    """What kernels are told about the prior."""
    return {"prior_mean": prior_mean, "half_precision": 0.5 / prior_std**2}


def constant_of(prior_std: float) -> float:
    """What kernels add to the divergence of every element."""
    return math.log(prior_std) - 0.5
