"""Standard deviations of several k-tied weights at once, as one vector."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels._autograd import reverse_mode_alone, traced
from leanbayes.noise import exact_products


class Block(NamedTuple):
    """One weight: a matrix ``u @ v.T`` of rows by columns.

    Attributes:
        rows: Output features.
        rest: Sizes of the other axes, whose product is the number of columns.
        rank: Columns of u and v.
        order: The other axes as they lie in memory, where that is not their own order.
    """

    rows: int
    rest: tuple[int, ...]
    rank: int
    order: tuple[int, ...] | None = None

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return torch.Size(self.rest).numel()

    def in_memory_order(self, v: Tensor) -> Tensor:
        """Rows of v ``[columns, rank]`` in the order of the columns in memory."""
        if self.order is None:
            return v
        return v.view(*self.rest, -1).permute(*self.order, len(self.order)).reshape(v.shape)


def tied_scales(log_u: Tensor, log_v: Tensor, blocks: tuple[Block, ...]) -> Tensor:
    """The elements of ``exp(log_u) @ exp(log_v).T`` of every block, one after the other.

    Args:
        log_u: Logarithms of all u ``[rows * rank]``, side by side.
        log_v: Those of all v ``[columns * rank]``.
        blocks: The weights.

    Returns:
        Standard deviations in the order in which the weights lie in memory.
    """
    with exact_products(log_u.device):
        if reverse_mode_alone():
            return _TiedScales.apply(log_u, log_v, blocks)  # pyright: ignore[reportReturnType]
        return _by_autograd(log_u, log_v, blocks)


def _by_autograd(log_u: Tensor, log_v: Tensor, blocks: Sequence[Block]) -> Tensor:
    """The same by functions that any kind of differentiation knows."""
    found = []
    all_u = log_u.exp().split([block.rows * block.rank for block in blocks])
    all_v = log_v.exp().split([block.columns * block.rank for block in blocks])
    for block, u, v in zip(blocks, all_u, all_v):
        v = block.in_memory_order(v.view(block.columns, block.rank))
        found.append((u.view(block.rows, block.rank) @ v.mT).flatten())
    return torch.cat(found)


class _TiedScales(torch.autograd.Function):
    """One product for each block and two for its gradients; all else is done for all blocks at once.

    Its input is no saved tensor of autograd: those are gone after one backward pass, and draws and divergence, which
    share the result, may be differentiated one after the other.
    """

    @staticmethod
    def forward(ctx: Any, log_u: Tensor, log_v: Tensor, blocks: tuple[Block, ...]) -> Tensor:
        """See the class."""
        u, v = log_u.exp(), _in_memory_order(log_v.exp(), blocks)
        found = u.new_empty(sum(_sizes(blocks).whole))
        # Their long side is contiguous: products with thin matrices are several times as quick so.
        factors = [[each.mT.contiguous() for each in side] for side in _factors(u, v, blocks)]
        for one_u, one_v, part in zip(*factors, _matrices(found, blocks)):
            torch.mm(one_u.mT, one_v, out=part)
        ctx.inputs, ctx.blocks, ctx.both, ctx.factors = (log_u, log_v), blocks, (u, v), factors
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        log_u, log_v = ctx.inputs
        with exact_products(grad.device):
            if torch.is_grad_enabled():
                scales, wanted = _by_autograd(log_u, log_v, ctx.blocks), ctx.needs_input_grad[:2]
                trained = [each for each, wants in zip(ctx.inputs, wanted) if wants]
                found = iter(torch.autograd.grad(scales, trained, grad, create_graph=True))
                by_u, by_v = (next(found) if wants else None for wants in wanted)
                return by_u, by_v, None
            u, v = ctx.both
            by_u, by_v = torch.empty_like(u), torch.empty_like(v)
            parts = _matrices(grad.contiguous(), ctx.blocks)
            results = _factors(by_u, by_v, ctx.blocks)
            for one_u, one_v, part, to_u, to_v in zip(*ctx.factors, parts, *results):
                torch.mm(part, one_v.mT, out=to_u)
                to_v.copy_(torch.mm(one_u, part).mT)
        return by_u.mul_(u), _in_own_order(by_v.mul_(v), ctx.blocks), None


class _Sizes(NamedTuple):
    """Elements of u, of v and of the matrix of each block."""

    u: list[int]
    v: list[int]
    whole: list[int]


@functools.lru_cache(maxsize=16)
def _sizes(blocks: tuple[Block, ...]) -> _Sizes:
    found = [(block.rows * block.rank, block.columns * block.rank, block.rows * block.columns) for block in blocks]
    return _Sizes(*(list(sizes) for sizes in zip(*found)))


def _factors(u: Tensor, v: Tensor, blocks: tuple[Block, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Views of each block's u ``[rows, rank]`` and of its v ``[columns, rank]``."""
    sizes = _sizes(blocks)
    all_u, all_v = u.split_with_sizes(sizes.u), v.split_with_sizes(sizes.v)
    return (
        [part.view(-1, block.rank) for part, block in zip(all_u, blocks)],
        [part.view(-1, block.rank) for part, block in zip(all_v, blocks)],
    )


def _matrices(whole: Tensor, blocks: tuple[Block, ...]) -> list[Tensor]:
    """Views ``[rows, columns]`` of each block."""
    parts = whole.split_with_sizes(_sizes(blocks).whole)
    return [part.view(block.rows, -1) for part, block in zip(parts, blocks)]


def _in_memory_order(v: Tensor, blocks: tuple[Block, ...]) -> Tensor:
    """All v with the columns of each block as they lie in memory."""
    if all(block.order is None for block in blocks):
        return v
    return v.index_select(0, _order(blocks, v.device))


def _in_own_order(v: Tensor, blocks: tuple[Block, ...]) -> Tensor:
    """What `_in_memory_order` has put into another order, back in its own."""
    if all(block.order is None for block in blocks):
        return v
    return torch.empty_like(v).index_copy_(0, _order(blocks, v.device), v)


def _order(blocks: tuple[Block, ...], device: torch.device) -> Tensor:
    """`_make_order`, made once, as copying it to a device would stop its queue; not kept where it may be no numbers."""
    return (_make_order.__wrapped__ if traced() else _make_order)(blocks, device)


@functools.lru_cache(maxsize=16)
def _make_order(blocks: tuple[Block, ...], device: torch.device) -> Tensor:
    """Which element of all v comes when their columns are put into the order of memory."""
    found, start = [], 0
    for block in blocks:
        size = block.columns * block.rank
        found.append(block.in_memory_order(torch.arange(start, start + size).view(block.columns, block.rank)).flatten())
        start += size
    return torch.cat(found).to(device)
