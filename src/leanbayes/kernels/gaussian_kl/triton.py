"""The divergence and its gradients, each in one pass over the weight and one over the sums of its tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.kernels._divergence import (
    constant_of,
    distance_of,
    divergence,
    prior_arguments,
    std_slope,
    sum_of_tiles,
)
from leanbayes.kernels._launch import FactorSlopes, blocks, on_device, rows_and_columns, scratch, tiles_of
from leanbayes.kernels._layout import MatrixLayout
from leanbayes.kernels._tiles import (
    column_entries,
    column_offsets,
    sigmoid,
    softplus,
    store_factor_parts,
    tied_std,
    tile_of,
)
from leanbayes.kernels._triton import constexpr, jit, tl

_TILE = (4096, 128)
# A tile for each warp: several would wait for each other to sum over rows and columns. Small matrices have one tile.
_SLOPE_TILE = {"elements": 2048, "most_columns": 128, "of_warp": 2048, "single": 4096}
_BLOCK = 2048


@jit
def _tied_parts(
    parts,
    loc,
    centre,
    row_logs,
    column_logs,
    prior_mean,
    half_precision,
    constant,
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
    CENTRED: constexpr,
):
    row_tile, column_tile = tile_of(columns, ROWS, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
    entry = column_entries(column, columns, period, ROTATED)
    std = tied_std(row_logs, column_logs, row, entry, row_mask, column_mask, RANK, ROWS, COLUMNS)
    mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32)
    distance = distance_of(mean, centre, prior_mean, offset, mask, CENTRED)
    tl.store(parts + tl.program_id(0), tl.sum(tl.sum(divergence(std, distance, half_precision, constant, mask), 1), 0))


@jit
def _tied_slopes(
    grad,
    grad_loc,
    row_parts,
    column_parts,
    loc,
    centre,
    row_logs,
    column_logs,
    prior_mean,
    half_precision,
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
    CENTRED: constexpr,
    NEED_LOC: constexpr,
    NEED_STD: constexpr,
    SINGLE: constexpr,
):
    row_tile, column_tile = tile_of(columns, ROWS, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    g = tl.load(grad).to(tl.float32)
    if NEED_LOC:
        offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
        mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32)
        slope = g * 2.0 * half_precision * distance_of(mean, centre, prior_mean, offset, mask, CENTRED)
        tl.store(grad_loc + offset, slope.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        entry = column_entries(column, columns, period, ROTATED)
        std = tied_std(row_logs, column_logs, row, entry, row_mask, column_mask, RANK, ROWS, COLUMNS)
        store_factor_parts(
            row_parts,
            column_parts,
            g * std_slope(std, half_precision, mask),
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
            SINGLE,
        )


@jit
def _free_parts(
    parts, loc, centre, raw_std, prior_mean, half_precision, constant, size, BLOCK: constexpr, CENTRED: constexpr
):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    std = softplus(tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32))
    mean = tl.load(loc + position, mask=mask, other=0.0).to(tl.float32)
    distance = distance_of(mean, centre, prior_mean, position, mask, CENTRED)
    tl.store(parts + tl.program_id(0), tl.sum(divergence(std, distance, half_precision, constant, mask), 0))


@jit
def _free_slopes(
    grad,
    grad_loc,
    grad_raw,
    loc,
    centre,
    raw_std,
    prior_mean,
    half_precision,
    size,
    BLOCK: constexpr,
    CENTRED: constexpr,
    NEED_LOC: constexpr,
    NEED_STD: constexpr,
):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    g = tl.load(grad).to(tl.float32)
    if NEED_LOC:
        mean = tl.load(loc + position, mask=mask, other=0.0).to(tl.float32)
        slope = g * 2.0 * half_precision * distance_of(mean, centre, prior_mean, position, mask, CENTRED)
        tl.store(grad_loc + position, slope.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        raw = tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32)
        slope = g * std_slope(softplus(raw), half_precision, mask) * sigmoid(raw)
        tl.store(grad_raw + position, slope.to(grad_raw.dtype.element_ty), mask=mask)


def tied_value(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    layout: MatrixLayout,
) -> Tensor:
    """Run `_tied_parts` and sum them."""
    tiles = tiles_of(layout, log_u.shape[1], *_TILE)
    parts = scratch((tiles.count,), loc)
    with on_device(loc):
        _tied_parts[(tiles.count,)](
            parts,
            loc,
            loc if centre is None else centre,
            *rows_and_columns(layout, log_u, log_v),
            **prior_arguments(prior_mean, prior_std),
            constant=constant_of(prior_std),
            **tiles.arguments,
            CENTRED=centre is not None,
            num_warps=tiles.warps,
        )
        return sum_of_tiles(parts)


def tied_slopes(
    grad: Tensor,
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    layout: MatrixLayout,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `_tied_slopes`; gradients that are not needed are empty."""
    grad_loc = torch.empty_like(loc) if need_loc else loc.new_empty(0)
    tiles = tiles_of(layout, log_u.shape[1], **_SLOPE_TILE)
    slopes = FactorSlopes(tiles, log_u, log_v) if need_std else None
    with on_device(loc):
        _tied_slopes[(tiles.count,)](
            grad,
            grad_loc,
            loc if slopes is None else slopes.row_parts,
            loc if slopes is None else slopes.column_parts,
            loc,
            loc if centre is None else centre,
            *rows_and_columns(layout, log_u, log_v),
            **prior_arguments(prior_mean, prior_std),
            **tiles.arguments,
            CENTRED=centre is not None,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
            SINGLE=tiles.count == 1,
            num_warps=tiles.warps,
        )
        grads = (loc.new_empty(0), loc.new_empty(0)) if slopes is None else slopes.gradients()
    return grad_loc, *grads


def free_value(loc: Tensor, raw_std: Tensor, centre: Tensor | None, prior_mean: float, prior_std: float) -> Tensor:
    """Run `_free_parts` and sum them."""
    size = loc.numel()
    count = blocks(size, _BLOCK)
    parts = scratch((count,), loc)
    with on_device(loc):
        _free_parts[(count,)](
            parts,
            loc,
            loc if centre is None else centre,
            raw_std,
            **prior_arguments(prior_mean, prior_std),
            constant=constant_of(prior_std),
            size=size,
            BLOCK=_BLOCK,
            CENTRED=centre is not None,
        )
        return sum_of_tiles(parts)


def free_slopes(
    grad: Tensor,
    loc: Tensor,
    raw_std: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor]:
    """Run `_free_slopes`; gradients that are not needed are empty."""
    size = loc.numel()
    grad_loc = torch.empty_like(loc) if need_loc else loc.new_empty(0)
    grad_raw = torch.empty_like(raw_std) if need_std else loc.new_empty(0)
    with on_device(loc):
        _free_slopes[(blocks(size, _BLOCK),)](
            grad,
            grad_loc,
            grad_raw,
            loc,
            loc if centre is None else centre,
            raw_std,
            **prior_arguments(prior_mean, prior_std),
            size=size,
            BLOCK=_BLOCK,
            CENTRED=centre is not None,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
        )
    return grad_loc, grad_raw
