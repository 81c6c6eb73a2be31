"""What launches of kernels have in common."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels._layout import MatrixLayout
from leanbayes.kernels._tiles import finish_factors

_HERE = nullcontext()


def on_device(x: Tensor) -> AbstractContextManager:
    """Context in which kernels run on the device of a tensor, which need not be the current one."""
    elsewhere = x.is_cuda and x.get_device() != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else _HERE


def scratch(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Room for sums in float32."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def blocks(size: int, block: int) -> int:
    """Number of blocks that cover so many elements."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """The smallest power of two from `size` on."""
    return 1 << max(size - 1, 0).bit_length()


class Tiles:
    """Tiles that cover a matrix, with what kernels of `_tiles` are told about it.

    Args:
        layout: How the matrix lies in memory.
        rank: Columns of both factors.
        elements: Elements of a tile at most.
        most_columns: Columns of a tile at most.
        of_warp: Elements that a warp works on.
        single: Elements of a small matrix that has one tile at most.
    """

    def __init__(
        self, layout: MatrixLayout, rank: int, elements: int, most_columns: int, of_warp: int = 512, single: int = 0
    ) -> None:
        self.layout, self.rank = layout, rank
        # Noise comes in fours.
        self.columns = min(most_columns, power_of_two(max(layout.columns, 4)))
        self.rows = power_of_two(layout.rows)
        if layout.columns > self.columns or self.rows * self.columns > single:
            self.rows = min(elements // self.columns, self.rows)
        self.row_tiles = blocks(layout.rows, self.rows)
        self.column_tiles = blocks(layout.columns, self.columns)
        self.count = self.row_tiles * self.column_tiles
        self.warps = min(max(self.rows * self.columns // of_warp, 1), 8)

        # Of all kernels that go through the matrix.
        self.arguments: dict[str, Any] = {
            "rows": layout.rows,
            "columns": layout.columns,
            "row_stride": layout.row_stride,
            "run": layout.run,
            "run_stride": layout.run_stride,
            "period": layout.period,
            "RANK": rank,
            "SPLIT": layout.run < layout.columns,
            "ROTATED": layout.period > 1,
            "ROWS": self.rows,
            "COLUMNS": self.columns,
        }


# They follow from the layout, and every launch asks for them.
tiles_of = functools.cache(Tiles)


def rows_and_columns(layout: MatrixLayout, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of the rows and that of the columns."""
    return (v, u) if layout.swapped else (u, v)


class FactorSlopes:
    """The slopes in both factors, summed over tiles first and then over the tiles, so that they are always the same.

    Args:
        tiles: Tiles of the matrix; a single one has no sums to wait for.
        log_u: Logarithms of u.
        log_v: Logarithms of v.
    """

    def __init__(self, tiles: Tiles, log_u: Tensor, log_v: Tensor) -> None:
        self.tiles, self.logs = tiles, (log_u, log_v)
        self.found = torch.empty_like(log_u), torch.empty_like(log_v)
        layout, rank = tiles.layout, tiles.rank
        if tiles.count == 1:
            self.row_parts, self.column_parts = rows_and_columns(layout, *self.found)
            return
        self.row_parts = scratch((tiles.column_tiles, layout.rows, rank), log_u)
        self.column_parts = scratch((tiles.row_tiles, layout.columns, rank), log_u)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients in the logarithms of both factors, once every tile has stored its part."""
        if self.tiles.count == 1:
            return self.found
        tiles, layout = self.tiles, self.tiles.layout
        row_logs, column_logs = rows_and_columns(layout, *self.logs)
        row_grad, column_grad = rows_and_columns(layout, *self.found)
        block = 16  # few entries and many tiles: a matrix may be as tall as it likes
        grid = blocks(row_logs.numel(), block) + blocks(column_logs.numel(), block)
        finish_factors[(grid,)](
            self.row_parts,
            self.column_parts,
            row_logs,
            column_logs,
            row_grad,
            column_grad,
            rows=layout.rows,
            columns=layout.columns,
            row_tiles=tiles.row_tiles,
            column_tiles=tiles.column_tiles,
            period=layout.period,
            RANK=tiles.rank,
            ROTATED=layout.period > 1,
            TILES=128,
            BLOCK=block,
        )
        return self.found
