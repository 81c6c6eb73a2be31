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

from leanbayes._sampling import Sampling, current_frame

# Standard Cauchy noise is clipped here: beyond lie 0.06 % of its mass, and values that overflow half precision.
CAUCHY_LIMIT = 1e3


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of variances, noise and KL terms for parameters of `dtype`: float32 at least."""
    return dtype if dtype == torch.float64 else torch.float32


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """``value.to(dtype)``, which takes as long as a small product, and compilers to follow, where it does nothing."""
    return value if value.dtype is dtype else value.to(dtype)


def full_precision(value: Tensor) -> Tensor:
    """A tensor in the dtype of variances and KL terms: float32 at least."""
    return as_dtype(value, compute_dtype(value.dtype))


_AS_IT_IS = nullcontext()


def exact_products(device: torch.device, *dtypes: torch.dtype) -> AbstractContextManager:
    """Context in which autocast leaves products in the precision of their factors.

    Args:
        device: Where they are computed.
        *dtypes: Those of all factors where they are known: where autocast would choose no other, nothing is changed,
            as its contexts take longer than a small product.
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return _AS_IT_IS
    if dtypes and set(dtypes) == {torch.get_autocast_dtype(device.type)}:
        return _AS_IT_IS
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast computes products with x in, None where it leaves them alone."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(device)


def _draw(function: Callable[..., Tensor], shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    dtype = compute_dtype(like.dtype)
    options = {"device": like.device, "dtype": dtype}
    if spec.streams is not None:
        # One source per sample: sample s is the same however the samples are spread over passes.
        part = (shape[0] // len(spec.streams), *shape[1:])
        if torch.compiler.is_compiling():
            return torch.cat([_counted(function, part, stream.next_key(), options) for stream in spec.streams])
        generators = [stream.generator(like.device) for stream in spec.streams]
        return torch.cat([function(part, generator=generator, **options) for generator in generators])
    if spec.generator is not None:
        return function(tuple(shape), generator=spec.generator, **options)
    if spec.stream is not None:
        if torch.compiler.is_compiling():
            return _counted(function, tuple(shape), spec.stream.next_key(), options)
        return function(tuple(shape), generator=spec.stream.generator(like.device), **options)
    return function(tuple(shape), **options)


def _counted(function: Callable[..., Tensor], shape: tuple[int, ...], key: Tensor, options: dict) -> Tensor:
    """What `torch.rand` or `torch.randn` draws, as a function of a key: compiled graphs hold no generators."""
    device, dtype = options["device"], options["dtype"]
    if function is torch.rand:
        return _hashed(shape, key.to(device)).to(dtype)
    first, second = _hashed((2, *shape), key.to(device)).to(dtype).unbind(0)
    # Box and Muller; 1 - u is never 0.
    return (-2 * torch.log1p(-first)).sqrt() * (2 * math.pi * second).cos()


_32_BITS = 0xFFFFFFFF
_KEYS = 2**62
# Draws that compiled code makes in one go.
_AT_ONCE = 64
# Elements of a draw up to which it is made with others there, and how many in one go.
_FEW_ELEMENTS, _ELEMENTS_AT_ONCE = 2**12, 2**14


def _hashed(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Numbers uniform on [0, 1), in steps of 2^-24, by hashing their position together with the key."""
    start = _mix((_mix(key & _32_BITS) + (key >> 32)) & _32_BITS)
    position = torch.arange(math.prod(shape), device=key.device)
    bits = _mix((_mix(position ^ start) + _mix(start ^ 0x3C6EF372)) & _32_BITS)
    return ((bits >> 8).to(torch.float32) * 2.0**-24).view(shape)


def _mix(x: Tensor) -> Tensor:
    """A one-to-one map of 32-bit numbers that spreads each bit over all; products stay within 63 bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _32_BITS
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _32_BITS
    x = ((x ^ (x >> 14)) * 0x45D9F3B) & _32_BITS
    return x ^ (x >> 16)


def keys(n: int, like: Tensor, spec: Sampling) -> Tensor:
    """Seeds ``[n]`` of n samples for kernels that make their noise themselves, whole numbers from 0 on the device."""
    if spec.streams is not None:
        return _draw_keys(n, like, spec)
    return _next_of_many(f"keys on {like.device}", n, lambda many: _draw_keys(n * many, like, spec).view(n, many))


def _next_of_many(what: str, n: int, draw: Callable[[int], Tensor]) -> Tensor:
    """Of draws ``[n, many]`` that compiled code makes at once, those ``[n]`` whose turn it is; eager code draws one.

    Every call is one more for a compiler to follow, and one more kernel.

    Args:
        what: Says what is drawn, in the same way all through a pass.
        n: Number of draws.
        draw: Draws so many times n.
    """
    frame = current_frame()
    # In eager code a block may run again, in a second run that does not know what was drawn before it. Exported for
    # batches of any size, n is a symbol, which has no hash.
    if frame is None or not torch.compiler.is_compiling() or isinstance(n, torch.SymInt):
        return draw(1).squeeze(1)
    place = f"{what} of {n}"
    if place not in frame.kept or frame.kept[place][1] == _AT_ONCE:
        # The draws of one turn follow each other in memory, as kernels take them.
        frame.kept[place] = (draw(_AT_ONCE).t().contiguous().unbind(0), 0)
    block, used = frame.kept[place]
    frame.kept[place] = (block, used + 1)
    return block[used]


def _next_elements(what: str, shape: Sequence[int], draw: Callable[[int], Tensor]) -> Tensor:
    """Draws of a small ``shape`` ``[n, ...]`` from a larger one that compiled code makes at once; else as they are.

    Args:
        what: Says what is drawn and where, in the same way all through a pass.
        shape: Of the draws.
        draw: Draws ``[n, size]``.
    """
    frame, n, size = current_frame(), shape[0], math.prod(shape[1:])
    few = not isinstance(n, torch.SymInt) and n <= _AT_ONCE and size <= _FEW_ELEMENTS
    if frame is None or not few or not torch.compiler.is_compiling():
        return draw(size).view(tuple(shape))
    place = f"{what}, elements of {n}"
    if place not in frame.kept or frame.kept[place][1] + size > _ELEMENTS_AT_ONCE:
        frame.kept[place] = (draw(_ELEMENTS_AT_ONCE), 0)
    block, used = frame.kept[place]
    frame.kept[place] = (block, used + size)
    return block[:, used : used + size].reshape(tuple(shape))


def _draw_keys(n: int, like: Tensor, spec: Sampling) -> Tensor:
    device, source = like.device, spec.generator
    streams = spec.streams if spec.streams is not None or spec.stream is None else (spec.stream,) * n
    if streams is not None and torch.compiler.is_compiling():
        return torch.stack([stream.next_key() for stream in streams]).to(device)
    if spec.streams is not None:
        sources = [stream.generator(device) for stream in spec.streams]
        return torch.cat([torch.randint(_KEYS, (1,), generator=each, device=device) for each in sources])
    if source is None and spec.stream is not None:
        source = spec.stream.generator(device)
    if source is None:
        return torch.randint(_KEYS, (n,), device=device)
    return torch.randint(_KEYS, (n,), generator=source, device=device)


def normal(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Standard normal noise."""
    return _draw(torch.randn, shape, like, spec)


def uniform(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Noise uniform on [0, 1)."""
    return _draw(torch.rand, shape, like, spec)


def signs(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Noise of -1 and +1 with equal probability."""
    return torch.rsub(uniform(shape, like, spec).lt_(0.5), 1.0, alpha=2)  # 1 - 2 * (u < 0.5), in two calls


def cauchy(shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Standard Cauchy noise, clipped at `CAUCHY_LIMIT`; in float16 earlier, so that products do not overflow."""
    limit = min(CAUCHY_LIMIT, math.sqrt(torch.finfo(like.dtype).max) / 4)
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


def one_of(kinds: int, shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    """Numbers under `kinds`, equally probable; `categorical` would make their probabilities first."""
    what = f"one of {kinds} on {like.device}"
    if len(shape) == 1:
        return _next_of_many(what, shape[0], lambda many: _one_of(kinds, (shape[0], many), like, spec))
    return _next_elements(what, shape, lambda size: _one_of(kinds, (shape[0], size), like, spec))


def _one_of(kinds: int, shape: Sequence[int], like: Tensor, spec: Sampling) -> Tensor:
    # A uniform number next to 1 may be rounded up to `kinds`.
    return (uniform(shape, like, spec) * kinds).long().clamp_max(kinds - 1)


def balanced(n: int, kinds: int, like: Tensor, spec: Sampling) -> Tensor:
    """Numbers under `kinds` ``[n]`` in random order, each as often as the others, or once more."""
    # Which of them come once more is drawn as well, so that none is preferred in the long run.
    offset = (uniform((n,), like, spec)[0] * kinds).long()
    return (uniform((n,), like, spec).argsort() + offset) % kinds
