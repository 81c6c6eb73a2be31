"""The generator within Triton kernels; `reference.py` says what it computes."""

from __future__ import annotations

import math

from leanbayes.kernels._philox.reference import FACTORS, KEY_STEPS, ROUNDS
from leanbayes.kernels._triton import FAST_MATH, constexpr, jit, libdevice, tl

_ROUNDS = constexpr(ROUNDS)
_FACTOR_0, _FACTOR_1 = (constexpr(factor) for factor in FACTORS)
_STEP_0, _STEP_1 = (constexpr(step) for step in KEY_STEPS)
_ANGLE_STEP = constexpr(math.pi * 2.0**-31)


@jit
def words4(key, offset):
    """Four blocks of uint32: the words of a key at a block of counters."""
    zero = (offset * 0).to(tl.uint32)
    c0, c1, c2, c3 = offset.to(tl.uint32), zero, zero, zero
    if offset.dtype.primitive_bitwidth > 32:
        c1 = (offset >> 32).to(tl.uint32)
    key = key.to(tl.uint64)
    k0, k1 = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        # Products of 64 bits, of which both halves are used: one instruction, where Triton's own generator takes two.
        first, second = c0.to(tl.uint64) * _FACTOR_0, c2.to(tl.uint64) * _FACTOR_1
        c0, c2 = (second >> 32).to(tl.uint32) ^ c1 ^ k0, (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = second.to(tl.uint32), first.to(tl.uint32)
        k0 = tl.add(k0, _STEP_0, sanitize_overflow=False)
        k1 = tl.add(k1, _STEP_1, sanitize_overflow=False)
    return c0, c1, c2, c3


@jit
def uniform4(key, offset):
    """Four blocks uniform on [0, 1): those of positions ``4 offset + 0, 1, 2, 3``.

    Args:
        key: An int64 scalar, loaded by the kernel.
        offset: A block of counters, int32 or int64.
    """
    a, b, c, d = words4(key, offset)
    return _uniform(a), _uniform(b), _uniform(c), _uniform(d)


@jit
def normal4(key, offset):
    """Four standard normal blocks: those of positions ``4 offset + 0, 1, 2, 3``.

    Args:
        key: An int64 scalar, loaded by the kernel.
        offset: A block of counters, int32 or int64.
    """
    a, b, c, d = words4(key, offset)
    n0, n1 = _pair(a, b)
    n2, n3 = _pair(c, d)
    return n0, n1, n2, n3


@jit
def _uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@jit
def _pair(radius_word, angle_word):
    uniform = radius_word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10  # 2^-32, 2^-33
    angle = angle_word.to(tl.int32, bitcast=True).to(tl.float32) * _ANGLE_STEP
    if FAST_MATH:
        squared = -2.0 * libdevice.fast_logf(uniform)
        cos, sin = libdevice.fast_cosf(angle), libdevice.fast_sinf(angle)
    else:
        squared = -2.0 * tl.log(uniform)
        cos, sin = tl.cos(angle), tl.sin(angle)
    # A fast logarithm may be above 0 next to 1.
    radius = tl.sqrt(tl.maximum(squared, 0.0))
    return radius * cos, radius * sin
