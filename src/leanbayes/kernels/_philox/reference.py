"""The generator in plain torch, which defines it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Salmon et al. (2011) find no fault with 7 rounds or more; the kernels that use it have memory to wait for, but not
# for 10.
ROUNDS = 7

_BITS = 0xFFFFFFFF
FACTORS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox_words(keys: Tensor, counters: Tensor, rounds: int = ROUNDS) -> list[Tensor]:
    """Four words of 32 bits for each key and counter (Salmon et al. 2011, "Parallel random numbers").

    Args:
        keys: int64; the words of a key are its low and its high half.
        counters: int64 from 0, broadcast against `keys`.
        rounds: Number of rounds.

    Returns:
        Four int64 tensors of the common shape with values under 2^32.
    """
    k0, k1 = keys & _BITS, (keys >> 32) & _BITS
    c0, c1 = counters & _BITS, counters >> 32
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(rounds):
        high0, low0 = _product(c0, FACTORS[0])
        high1, low1 = _product(c2, FACTORS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & _BITS, (k1 + KEY_STEPS[1]) & _BITS
    return list(torch.broadcast_tensors(c0, c1, c2, c3))


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a product of two words, without leaving the 63 bits that torch has."""
    upper, lower = word * (factor >> 16), word * (factor & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & _BITS


def philox_uniform_reference(keys: Tensor, count: int) -> Tensor:
    """Numbers uniform on [0, 1), in steps of 2^-24: ``[n, count]`` in float32 for keys ``[n]``."""
    return _laid_out([(word >> 8).to(torch.float32) * 2.0**-24 for word in _first_words(keys, count)], count)


def philox_normal_reference(keys: Tensor, count: int) -> Tensor:
    """Standard normal numbers ``[n, count]`` in float32 for keys ``[n]``.

    Words a and b of a counter give ``r cos t`` and ``r sin t`` with ``r = sqrt(-2 log u)``, u from a on (0, 1] and t
    from b on [-pi, pi) (Box and Muller), and words c and d the other two. No number is beyond 6.8.
    """
    a, b, c, d = _first_words(keys, count)
    return _laid_out([*_pair(a, b), *_pair(c, d)], count)


def _first_words(keys: Tensor, count: int) -> list[Tensor]:
    counters = torch.arange((count + 3) // 4, device=keys.device)
    return philox_words(keys.unsqueeze(1), counters.unsqueeze(0))


def _pair(radius_word: Tensor, angle_word: Tensor) -> tuple[Tensor, Tensor]:
    # Half a step up: the logarithm never meets 0.
    uniform = radius_word.to(torch.float32) * 2.0**-32 + 2.0**-33
    radius = (-2 * uniform.log()).clamp_min(0).sqrt()
    # The word as a signed number: fast sines are good around 0 alone.
    signed = torch.where(angle_word < 2**31, angle_word, angle_word - 2**32)
    angle = signed.to(torch.float32) * (math.pi * 2.0**-31)
    return radius * angle.cos(), radius * angle.sin()


def _laid_out(fours: list[Tensor], count: int) -> Tensor:
    return torch.stack(fours, -1).flatten(1)[:, :count].contiguous()
