"""How a weight lies in memory, seen as a matrix of output features by everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Positions are counted in 32 bits, and blocks may reach over the end.
MOST_ELEMENTS = 2**30


@dataclass(frozen=True)
class MatrixLayout:
    """A weight as a matrix whose rows follow each other in memory as well as they can.

    Entry (i, j) lies at ``i * row_stride + (j // run) * run_stride + j % run``. Rows are output features and columns
    the rest, or the other way round where `swapped`. Column j belongs to row
    ``(j % period) * (columns // period) + j // period`` of the column factor: the rest is counted in the order of the
    weight's axes there, and in the order of memory here.

    Attributes:
        rows: Number of rows.
        columns: Number of columns.
        row_stride: Steps in memory from row to row.
        run: Columns that are neighbours in memory.
        run_stride: Steps in memory from run to run.
        period: 1, or the number of columns that have their first axes in common (input channels that lie last).
        swapped: Whether rows are the rest and columns the output features.
    """

    rows: int
    columns: int
    row_stride: int
    run: int
    run_stride: int
    period: int = 1
    swapped: bool = False

    def positions(self, device: torch.device) -> Tensor:
        """Position in memory of each entry ``[rows, columns]``."""
        i = torch.arange(self.rows, device=device).unsqueeze(1)
        j = torch.arange(self.columns, device=device)
        return i * self.row_stride + (j // self.run) * self.run_stride + j % self.run


# By shape, strides and axis: every draw and every gradient asks for them.
_LAYOUTS: dict[tuple[tuple[int, ...], tuple[int, ...], int], MatrixLayout | None] = {}


def matrix_layout(shape: Sequence[int], stride: Sequence[int], out_axis: int) -> MatrixLayout | None:
    """The layout of a weight, None where its memory has gaps or an order that the kernels do not know."""
    if torch.compiler.is_compiling():
        return _find_layout(shape, stride, out_axis)
    key = (tuple(shape), tuple(stride), out_axis)
    if key not in _LAYOUTS:
        _LAYOUTS[key] = _find_layout(shape, stride, out_axis)
    return _LAYOUTS[key]


def _find_layout(shape: Sequence[int], stride: Sequence[int], out_axis: int) -> MatrixLayout | None:
    out, size = shape[out_axis], math.prod(shape)
    order = memory_order(shape, stride)
    if order is None or not 0 < size <= MOST_ELEMENTS:
        return None
    rest = size // out
    period = _period(shape, [axis for axis in order if axis != out_axis])
    step = stride[out_axis] if out > 1 else rest
    if step == 1 and rest > 1:
        return MatrixLayout(rest, out, out, out, out, swapped=True) if period == 1 else None
    return None if period is None else MatrixLayout(out, rest, step, step, out * step, period)


def known_layout(weight: Tensor, out_axis: int) -> MatrixLayout:
    """The layout of a weight that `matrix_layout` knows."""
    layout = matrix_layout(weight.shape, weight.stride(), out_axis)
    if layout is None:
        raise ValueError(f"no kernel for a weight of shape {tuple(weight.shape)} and strides {weight.stride()}")
    return layout


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The axes longer than 1 from the longest steps in memory to the shortest; None where memory has gaps."""
    order = sorted([axis for axis in range(len(shape)) if shape[axis] > 1], key=lambda axis: -stride[axis])
    step = 1
    for axis in reversed(order):
        if stride[axis] != step:
            return None
        step *= shape[axis]
    return order


def _period(shape: Sequence[int], rest: list[int]) -> int | None:
    """Entries of the first axes where these lie last in memory; 1 where all lie in order, None in other orders."""
    start = rest.index(min(rest)) if rest else 0
    if rest[start:] + rest[:start] != sorted(rest):
        return None
    return 1 if start == 0 else math.prod([shape[axis] for axis in rest[start:]])


def same_layout(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape have their elements in the same order in memory, without gaps."""
    order = memory_order(first.shape, first.stride())
    return first.shape == second.shape and order is not None and order == memory_order(second.shape, second.stride())


def empty_draws(n: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for n tensors ``[n, *shape]``, each of which lies in memory as `like` does."""
    return like.new_empty_strided((n, *like.shape), (like.numel(), *like.stride()), dtype=dtype)


def laid_out(draws: Tensor, stride: Sequence[int]) -> Tensor:
    """``[n, *shape]`` with the given steps in memory: as it is where it has them, else a copy."""
    wanted = (math.prod(draws.shape[1:]), *stride)
    if all(size == 1 or a == b for size, a, b in zip(draws.shape, draws.stride(), wanted)):
        return draws
    return draws.new_empty_strided(draws.shape, wanted).copy_(draws)
