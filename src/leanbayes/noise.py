"""The only random draws of the library.

Every function takes the shape of what to draw, a tensor whose device it follows, and the sampling state. The first
axis counts samples, or rows with the samples outermost. Noise is drawn in float32 (float64 for float64 parameters)
whatever the parameters' dtype; nothing is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from leanbayes._sampling import Sampling

# Standard Cauchy noise is clipped here: beyond lie 0.06 % of its mass, and values that overflow half precision.
CAUCHY_LIMIT = 1e3


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of variances, noise and KL terms for parameters of `dtype`: float32 at least."""
    return dtype if dtype == torch.float64 else torch.float32


def full_precision(value: Tensor) -> Tensor:
    """A tensor in the dtype of variances and KL terms: float32 at least."""
    return value.to(compute_dtype(value.dtype))


def exact_products(device: torch.device) -> AbstractContextManager:
    """Context in which autocast leaves products in the precision of their factors."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _draw(function: Callable[..., Tensor], shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    dtype = compute_dtype(like.dtype)
    if spec.generators is not None:
        # One generator per sample: sample s is the same however the samples are spread over passes.
        part = (shape[0] // len(spec.generators), *shape[1:])
        return torch.cat([function(part, device=like.device, dtype=dtype, generator=g) for g in spec.generators])
    if spec.generator is not None:
        return function(tuple(shape), device=like.device, dtype=dtype, generator=spec.generator)
    return function(tuple(shape), device=like.device, dtype=dtype)


def normal(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Standard normal noise."""
    return _draw(torch.randn, shape, like, spec)


def uniform(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Noise uniform on [0, 1)."""
    return _draw(torch.rand, shape, like, spec)


def signs(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Noise of -1 and +1 with equal probability."""
    return torch.where(uniform(shape, like, spec) < 0.5, -1.0, 1.0).to(compute_dtype(like.dtype))


def cauchy(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Standard Cauchy noise, clipped at `CAUCHY_LIMIT`; in float16 earlier, so that two factors do not overflow."""
    limit = min(CAUCHY_LIMIT, math.sqrt(torch.finfo(like.dtype).max))
    return torch.tan(math.pi * (uniform(shape, like, spec) - 0.5)).clamp(-limit, limit)


def keep_mask(shape: Sequence[int], drop: float, like: Tensor, spec: Sampling) -> Tensor:
    """A dropout mask: 0 with probability `drop`, else 1 / (1 - drop)."""
    kept = uniform(shape, like, spec) >= drop
    return kept.to(compute_dtype(like.dtype)) / (1.0 - drop)


def categorical(shape: Sequence[int], probs: Tensor, spec: Sampling) -> Tensor:
    """Component indices with probabilities `probs` ``[K]``."""
    edges = probs.detach().to(compute_dtype(probs.dtype)).cumsum(0)
    # Rounding may leave the last edge under 1; clamping also spares compilers a sliced view.
    return torch.bucketize(uniform(shape, probs, spec), edges, right=True).clamp_max(probs.shape[0] - 1)


def gumbel(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Standard Gumbel noise."""
    tiny = torch.finfo(compute_dtype(like.dtype)).tiny
    return -torch.log(-torch.log(uniform(shape, like, spec).clamp_min(tiny)))
