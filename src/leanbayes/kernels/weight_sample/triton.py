"""Draws of a weight with noise that is made where it is used, and made again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.kernels._launch import FactorSlopes, blocks, on_device, rows_and_columns, tiles_of
from leanbayes.kernels._layout import MatrixLayout, empty_draws
from leanbayes.kernels._tiles import (
    column_entries,
    column_offsets,
    normals,
    sigmoid,
    softplus,
    store_factor_parts,
    tied_std,
    tile_of,
)
from leanbayes.kernels._triton import constexpr, jit, tl

# Elements of a tile and its columns at most: rows of whole cache lines, and several of them for each column's factor.
_DRAW_TILE = (4096, 128)
# Square, since each tile leaves one part per row and one per column.
_SLOPE_TILE = (4096, 64)
_BLOCK = 1024


@jit
def _draw_tied(
    out,
    loc,
    row_logs,
    column_logs,
    keys,
    n,
    rows,
    columns,
    row_stride,
    run,
    run_stride,
    period,
    RANK: constexpr,
    SPLIT: constexpr,
    ROTATED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    WITH_LOC: constexpr,
):
    row_tile, column_tile = tile_of(columns, ROWS, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
    entry = column_entries(column, columns, period, ROTATED)
    std = tied_std(row_logs, column_logs, row, entry, row_mask, column_mask, RANK, ROWS, COLUMNS)
    mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32) if WITH_LOC else 0.0
    # Rows begin at a multiple of four numbers, so that no four of them lie in two rows.
    fours = column_tile * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    counters = (row * tl.cdiv(columns, 4))[:, None] + fours[None, :]
    for s in range(n):
        draw = mean + std * normals(tl.load(keys + s), counters)
        tl.store(out + offset, draw.to(out.dtype.element_ty), mask=mask)
        # Step by step: together the samples may have more elements than 32 bits count.
        out += rows * columns


@jit
def _tied_slopes(
    grad,
    grad_loc,
    row_parts,
    column_parts,
    row_logs,
    column_logs,
    keys,
    n,
    rows,
    columns,
    row_stride,
    run,
    run_stride,
    period,
    RANK: constexpr,
    SPLIT: constexpr,
    ROTATED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    NEED_LOC: constexpr,
    NEED_STD: constexpr,
):
    row_tile, column_tile = tile_of(columns, ROWS, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
    fours = column_tile * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    counters = (row * tl.cdiv(columns, 4))[:, None] + fours[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    slope = tl.zeros((ROWS, COLUMNS), tl.float32)
    for s in range(n):
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        if NEED_LOC:
            total += g
        if NEED_STD:
            slope += g * normals(tl.load(keys + s), counters)
        grad += rows * columns
    if NEED_LOC:
        tl.store(grad_loc + offset, total.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        entry = column_entries(column, columns, period, ROTATED)
        store_factor_parts(
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
            RANK,
        )


@jit
def _draw_free(out, loc, raw_std, keys, n, size, BLOCK: constexpr, WITH_LOC: constexpr):
    pid = tl.program_id(0)
    position = pid * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    std = softplus(tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32))
    mean = tl.load(loc + position, mask=mask, other=0.0).to(tl.float32) if WITH_LOC else 0.0
    counters = pid * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    for s in range(n):
        draw = mean + std * normals(tl.load(keys + s), counters)
        tl.store(out + position, draw.to(out.dtype.element_ty), mask=mask)
        out += size


@jit
def _free_slopes(
    grad,
    grad_loc,
    grad_raw,
    raw_std,
    keys,
    n,
    size,
    BLOCK: constexpr,
    NEED_LOC: constexpr,
    NEED_STD: constexpr,
):
    pid = tl.program_id(0)
    position = pid * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    counters = pid * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    total = tl.zeros((BLOCK,), tl.float32)
    slope = tl.zeros((BLOCK,), tl.float32)
    for s in range(n):
        g = tl.load(grad + position, mask=mask, other=0.0).to(tl.float32)
        if NEED_LOC:
            total += g
        if NEED_STD:
            slope += g * normals(tl.load(keys + s), counters)
        grad += size
    if NEED_LOC:
        tl.store(grad_loc + position, total.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        raw = tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_raw + position, (slope * sigmoid(raw)).to(grad_raw.dtype.element_ty), mask=mask)


def draw_tied(
    loc: Tensor, log_u: Tensor, log_v: Tensor, keys: Tensor, layout: MatrixLayout, with_loc: bool, dtype: torch.dtype
) -> Tensor:
    """Run `_draw_tied`."""
    n = keys.shape[0]
    out = empty_draws(n, loc, dtype)
    tiles = tiles_of(layout, log_u.shape[1], *_DRAW_TILE)
    row_logs, column_logs = rows_and_columns(layout, log_u, log_v)
    with on_device(loc):
        _draw_tied[(tiles.count,)](
            out, loc, row_logs, column_logs, keys, n=n, **tiles.arguments, WITH_LOC=with_loc, num_warps=tiles.warps
        )
    return out


def tied_slopes(
    grad: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    layout: MatrixLayout,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `_tied_slopes`; gradients that are not needed are empty."""
    grad_loc = empty_draws(1, grad[0], loc_dtype)[0] if need_loc else grad.new_empty(0)
    tiles = tiles_of(layout, log_u.shape[1], *_SLOPE_TILE)
    row_logs, column_logs = rows_and_columns(layout, log_u, log_v)
    slopes = FactorSlopes(tiles, grad) if need_std else None
    with on_device(grad):
        _tied_slopes[(tiles.count,)](
            grad,
            grad_loc,
            grad if slopes is None else slopes.row_parts,
            grad if slopes is None else slopes.column_parts,
            row_logs,
            column_logs,
            keys,
            n=keys.shape[0],
            **tiles.arguments,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
            num_warps=tiles.warps,
        )
        grads = (grad.new_empty(0), grad.new_empty(0)) if slopes is None else slopes.gradients(log_u, log_v)
    return grad_loc, *grads


def draw_free(loc: Tensor, raw_std: Tensor, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
    """Run `_draw_free`."""
    n, size = keys.shape[0], loc.numel()
    out = empty_draws(n, loc, dtype)
    with on_device(loc):
        _draw_free[(blocks(size, _BLOCK),)](out, loc, raw_std, keys, n=n, size=size, BLOCK=_BLOCK, WITH_LOC=with_loc)
    return out


def free_slopes(
    grad: Tensor, raw_std: Tensor, keys: Tensor, loc_dtype: torch.dtype, need_loc: bool, need_std: bool
) -> tuple[Tensor, Tensor]:
    """Run `_free_slopes`; gradients that are not needed are empty."""
    size = raw_std.numel()
    grad_loc = torch.empty_like(raw_std, dtype=loc_dtype) if need_loc else grad.new_empty(0)
    grad_raw = torch.empty_like(raw_std) if need_std else grad.new_empty(0)
    with on_device(grad):
        _free_slopes[(blocks(size, _BLOCK),)](
            grad,
            grad_loc,
            grad_raw,
            raw_std,
            keys,
            n=keys.shape[0],
            size=size,
            BLOCK=_BLOCK,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
        )
    return grad_loc, grad_raw
