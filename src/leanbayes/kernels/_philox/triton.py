"""The generator within Triton kernels; `reference.py` says what it computes."""

from __future__ import annotations

import math

from leanbayes.kernels._philox.reference import ROUNDS
from leanbayes.kernels._triton import FAST_MATH, constexpr, jit, libdevice, tl

_ROUNDS = constexpr(ROUNDS)
_ANGLE_STEP = constexpr(math.pi * 2.0**-31)


@jit
def uniform4(key, offset):
    """Four blocks uniform on [0, 1): those of positions ``4 offset + 0, 1, 2, 3``.

    Args:
        key: An int64 scalar, loaded by the kernel.
        offset: A block of counters, int32 or int64.
    """
    a, b, c, d = tl.randint4x(key, offset, _ROUNDS)
    return _uniform(a), _uniform(b), _uniform(c), _uniform(d)


@jit
def normal4(key, offset):
    """Four standard normal blocks: those of positions ``4 offset + 0, 1, 2, 3``.

    Args:
        key: An int64 scalar, loaded by the kernel.
        offset: A block of counters, int32 or int64.
    """
    a, b, c, d = tl.randint4x(key, offset, _ROUNDS)
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
