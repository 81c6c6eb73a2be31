"""The choice among copies with indices that are made where they are used, and made again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.kernels._launch import blocks, on_device, power_of_two
from leanbayes.kernels._philox import uniform4
from leanbayes.kernels._triton import constexpr, jit, tl

_BLOCK = 1024
# Elements of all copies that a program holds.
_SLOPE_BLOCK = 4096


@jit
def _index(key, counters, edges, INNER: constexpr):
    """Which copy each element takes, ``[4 m]`` for counters ``[m]``."""
    a, b, c, d = uniform4(key, counters)
    uniform = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    index = tl.zeros_like(uniform).to(tl.int32)
    for k in range(INNER):
        index += (uniform >= tl.load(edges + k)).to(tl.int32)
    return index


@jit
def _choose(out, copies, edges, keys, n, size, INNER: constexpr, BLOCK: constexpr):
    pid = tl.program_id(0)
    position = pid * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    counters = pid * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    for s in range(n):
        index = _index(tl.load(keys + s), counters, edges, INNER)
        # Together the copies may have more elements than 32 bits count.
        drawn = tl.load(copies + index.to(tl.int64) * size + position, mask=mask, other=0.0)
        tl.store(out + position, drawn.to(out.dtype.element_ty), mask=mask)
        out += size


@jit
def _choice_slopes(grad, grad_copies, edges, keys, n, size, INNER: constexpr, COPIES: constexpr, BLOCK: constexpr):
    pid = tl.program_id(0)
    position = pid * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    counters = pid * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    copy = tl.arange(0, COPIES)
    total = tl.zeros((COPIES, BLOCK), tl.float32)
    for s in range(n):
        g = tl.load(grad + position, mask=mask, other=0.0).to(tl.float32)
        index = _index(tl.load(keys + s), counters, edges, INNER)
        total += tl.where(copy[:, None] == index[None, :], g[None, :], 0.0)
        grad += size
    offset = copy.to(tl.int64)[:, None] * size + position[None, :]
    inside = (copy <= INNER)[:, None] & mask[None, :]
    tl.store(grad_copies + offset, total.to(grad_copies.dtype.element_ty), mask=inside)


def choose(copies: Tensor, edges: Tensor, keys: Tensor) -> Tensor:
    """Run `_choose`."""
    n, size = keys.shape[0], copies[0].numel()
    out = copies.new_empty((n, *copies.shape[1:]), dtype=torch.float32)
    with on_device(copies):
        _choose[(blocks(size, _BLOCK),)](
            out, copies, edges, keys, n=n, size=size, INNER=copies.shape[0] - 1, BLOCK=_BLOCK
        )
    return out


def choice_slopes(grad: Tensor, edges: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Run `_choice_slopes`."""
    inner, size = edges.shape[0], grad[0].numel()
    grad_copies = grad.new_empty((inner + 1, *grad.shape[1:]), dtype=dtype)
    copies = power_of_two(inner + 1)
    block = max(_SLOPE_BLOCK // copies, 4)
    with on_device(grad):
        _choice_slopes[(blocks(size, block),)](
            grad, grad_copies, edges, keys, n=keys.shape[0], size=size, INNER=inner, COPIES=copies, BLOCK=block
        )
    return grad_copies
