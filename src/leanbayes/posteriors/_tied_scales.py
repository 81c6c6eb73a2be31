"""Standard deviations of several k-tied weights at once, as one vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels._autograd import reverse_mode_alone
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
        return v if self.order is None else _permuted(v, self.rest, self.order)

    def in_own_order(self, v: Tensor) -> Tensor:
        """What `in_memory_order` has put into another order, back in its own."""
        if self.order is None:
            return v
        sizes = [self.rest[axis] for axis in self.order]
        return _permuted(v, sizes, [self.order.index(axis) for axis in range(len(self.order))])


def _permuted(v: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    return v.view(*sizes, -1).permute(*order, len(order)).reshape(v.shape)


def tied_scales(log_u: Tensor, log_v: Tensor, blocks: Sequence[Block]) -> Tensor:
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
        parts = _factors(log_u.exp(), log_v.exp(), blocks)
        return torch.cat([(u @ v.mT).flatten() for _, u, v in parts])


def _factors(u: Tensor, v: Tensor, blocks: Sequence[Block]) -> Iterator[tuple[Block, Tensor, Tensor]]:
    """Each block with its u ``[rows, rank]`` and v ``[columns, rank]``, the latter as the columns lie in memory."""
    all_u = u.split([block.rows * block.rank for block in blocks])
    all_v = v.split([block.columns * block.rank for block in blocks])
    for block, one_u, one_v in zip(blocks, all_u, all_v):
        one_u, one_v = one_u.view(block.rows, block.rank), one_v.view(block.columns, block.rank)
        yield block, _long(one_u), _long(block.in_memory_order(one_v))


def _long(factor: Tensor) -> Tensor:
    """On a CPU, a thin factor whose long side is contiguous: products with it are far quicker."""
    return factor.mT.contiguous().mT if factor.device.type == "cpu" else factor


def _thin(matrix: Tensor, factor: Tensor) -> Tensor:
    """The product of a matrix and a thin factor; on a CPU by one that is short and wide, which is quicker."""
    return (factor.mT @ matrix.mT).mT if matrix.device.type == "cpu" else matrix @ factor


class _TiedScales(torch.autograd.Function):
    """One product for each block and two for its gradients; all else is done for all blocks at once."""

    @staticmethod
    def forward(ctx: Any, log_u: Tensor, log_v: Tensor, blocks: Sequence[Block]) -> Tensor:
        """See the class."""
        ctx.save_for_backward(log_u, log_v)
        ctx.blocks = blocks
        sizes = [block.rows * block.columns for block in blocks]
        found = torch.empty(sum(sizes), dtype=log_u.dtype, device=log_u.device)
        for (block, u, v), part in zip(_factors(log_u.exp(), log_v.exp(), blocks), found.split(sizes)):
            torch.mm(u, v.mT, out=part.view(block.rows, block.columns))
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        log_u, log_v = ctx.saved_tensors
        u, v = log_u.exp(), log_v.exp()
        by_u, by_v = [], []
        grads = grad.split([block.rows * block.columns for block in ctx.blocks])
        with exact_products(grad.device):
            for (block, one_u, one_v), part in zip(_factors(u, v, ctx.blocks), grads):
                part = part.view(block.rows, block.columns)
                by_u.append(_thin(part, one_v).flatten())
                by_v.append(block.in_own_order(_thin(part.mT, one_u)).flatten())
        return torch.cat(by_u) * u, torch.cat(by_v) * v, None
