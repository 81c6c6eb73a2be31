"""Parts of kernels that go through a weight tile by tile; `_layout.MatrixLayout` says where its entries lie."""

from __future__ import annotations

from leanbayes.kernels._dispatch import interpreted
from leanbayes.kernels._interpreter import mend
from leanbayes.kernels._philox import normal4
from leanbayes.kernels._triton import FAST_MATH, constexpr, jit, libdevice, tl

if interpreted():
    mend()


@jit
def tile_of(columns, ROWS: constexpr, COLUMNS: constexpr):
    """Number of this program's tile along the rows and along the columns, which are counted first."""
    per_row = tl.cdiv(columns, COLUMNS)
    return tl.program_id(0) // per_row, tl.program_id(0) % per_row


@jit
def column_offsets(column, run, run_stride, SPLIT: constexpr):
    """Position in memory of each column within its row."""
    if SPLIT:
        return (column // run) * run_stride + column % run
    else:
        return column


@jit
def column_entries(column, columns, period, ROTATED: constexpr):
    """Row of the column factor that each column belongs to."""
    if ROTATED:
        return (column % period) * (columns // period) + column // period
    else:
        return column


@jit
def factor(logs, entry, mask, j, RANK: constexpr):
    """Column j of a factor, at some of its rows; 1 where masked."""
    log = tl.load(logs + entry * RANK + j, mask=mask, other=0.0).to(tl.float32)
    # As `tl.exp`, but that factors of less than 2^-126 are 0, which spares the steps that would scale them.
    return libdevice.fast_expf(log) if FAST_MATH else tl.exp(log)


@jit
def tied_std(
    row_logs, column_logs, row, entry, row_mask, column_mask, RANK: constexpr, ROWS: constexpr, COLUMNS: constexpr
):
    """A tile of ``exp(row_logs) @ exp(column_logs).T``, as a sum of outer products."""
    std = tl.zeros((ROWS, COLUMNS), tl.float32)
    for j in tl.static_range(RANK):
        u = factor(row_logs, row, row_mask, j, RANK)
        v = factor(column_logs, entry, column_mask, j, RANK)
        std += u[:, None] * v[None, :]
    return std


@jit
def normals(key, counters):
    """Standard normal noise ``[..., 4 m]`` of counters ``[..., m]``, the four numbers of a counter side by side."""
    a, b, c, d = normal4(key, counters)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@jit
def softplus(raw):
    """``log(1 + exp(raw))``, accurate to a few units in the last place where it is small, too.

    With t = exp(-|raw|), ``log(1 + t) = 2 artanh(z)`` for z = t / (2 + t) up to 1/3, whose series needs few terms: a
    logarithm next to 1 loses what matters.
    """
    t = tl.exp(-tl.abs(raw))
    z = t / (2.0 + t)
    square = z * z
    series = 1.0 / 13.0
    series = series * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    series = series * square + 1.0
    return tl.maximum(raw, 0.0) + 2.0 * z * series


@jit
def sigmoid(raw):
    """``1 / (1 + exp(-raw))``, the derivative of `softplus`."""
    t = tl.exp(-tl.abs(raw))
    return tl.where(raw >= 0, 1.0, t) / (1.0 + t)


@jit
def store_factor_parts(
    row_parts,
    column_parts,
    slope,
    row_logs,
    column_logs,
    row,
    column,
    entry,
    row_mask,
    column_mask,
    row_tile,
    column_tile,
    rows,
    columns,
    RANK: constexpr,
    SINGLE: constexpr,
):
    """What one tile of slopes in the standard deviations adds to the slopes in both factors.

    Args:
        row_parts: ``[column tiles, rows, RANK]``; the gradient in the logarithms of the row factor where there is a
            single tile.
        column_parts: ``[row tiles, columns, RANK]``; likewise.
        slope: ``[ROWS, COLUMNS]``, 0 where masked.
        row_logs: Logarithms of the row factor ``[rows, RANK]``.
        column_logs: Logarithms of the column factor ``[columns, RANK]``.
        row: Numbers of the rows.
        column: Numbers of the columns.
        entry: Rows of the column factor that they belong to.
        row_mask: Which rows there are.
        column_mask: Which columns there are.
        row_tile: Number of the tile along the rows.
        column_tile: Number of the tile along the columns.
        rows: Number of all rows.
        columns: Number of all columns.
        RANK: Columns of both factors.
        SINGLE: Whether there is no other tile.
    """
    for j in tl.static_range(RANK):
        u = factor(row_logs, row, row_mask, j, RANK)
        v = factor(column_logs, entry, column_mask, j, RANK)
        to_rows = tl.sum(slope * v[None, :], 1)
        to_columns = tl.sum(slope * u[:, None], 0)
        if SINGLE:
            tl.store(row_parts + row * RANK + j, (to_rows * u).to(row_parts.dtype.element_ty), mask=row_mask)
            to_columns = (to_columns * v).to(column_parts.dtype.element_ty)
            tl.store(column_parts + entry * RANK + j, to_columns, mask=column_mask)
        else:
            tl.store(row_parts + (column_tile * rows + row) * RANK + j, to_rows, mask=row_mask)
            tl.store(column_parts + (row_tile * columns + column) * RANK + j, to_columns, mask=column_mask)


@jit
def sum_parts(parts, entry, mask, size, count, TILES: constexpr, BLOCK: constexpr):
    """Sums over the first axis of ``[count, size]`` at some entries, always in the same order."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile < count)[:, None] & mask[None, :]
        total += tl.sum(tl.load(parts + tile[:, None] * size + entry[None, :], mask=inside, other=0.0), 0)
    return total


@jit
def finish_factors(
    row_parts,
    column_parts,
    row_logs,
    column_logs,
    row_grad,
    column_grad,
    rows,
    columns,
    row_tiles,
    column_tiles,
    period,
    RANK: constexpr,
    ROTATED: constexpr,
    TILES: constexpr,
    BLOCK: constexpr,
):
    """Gradients in the logarithms of both factors: the sums of all tiles' parts, times the factors.

    Programs take blocks of the row factor first, then blocks of the column factor.
    """
    row_blocks = tl.cdiv(rows * RANK, BLOCK)
    pid = tl.program_id(0)
    if pid < row_blocks:
        entry = pid * BLOCK + tl.arange(0, BLOCK)
        mask = entry < rows * RANK
        total = sum_parts(row_parts, entry, mask, rows * RANK, column_tiles, TILES, BLOCK)
        log = tl.load(row_logs + entry, mask=mask, other=0.0).to(tl.float32)
        tl.store(row_grad + entry, (total * tl.exp(log)).to(row_grad.dtype.element_ty), mask=mask)
    else:
        entry = (pid - row_blocks) * BLOCK + tl.arange(0, BLOCK)
        mask = entry < columns * RANK
        total = sum_parts(column_parts, entry, mask, columns * RANK, row_tiles, TILES, BLOCK)
        target = column_entries(entry // RANK, columns, period, ROTATED) * RANK + entry % RANK
        log = tl.load(column_logs + target, mask=mask, other=0.0).to(tl.float32)
        tl.store(column_grad + target, (total * tl.exp(log)).to(column_grad.dtype.element_ty), mask=mask)
