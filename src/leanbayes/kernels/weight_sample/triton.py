"""Draws of a weight with noise that is made where it is used, and made again in the backward pass.

Where a prior is given, the kernels that draw measure the divergence from it as well, and those of the backward pass
compute the slopes of both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
# A tile for each warp: several would wait for each other to sum over rows and columns. Small matrices have one tile.
_SLOPE_TILE = {"elements": 2048, "most_columns": 128, "of_warp": 2048, "single": 4096}
# Slopes of draws and divergence take more registers.
_MEASURED_SLOPE_TILE = {"elements": 1024, "most_columns": 128, "of_warp": 1024, "single": 4096}
_BLOCK = 1024


class GaussianPrior(NamedTuple):
    """N(mean, std^2), with a mean of its own for each element where there is a `centre`."""

    centre: Tensor | None
    mean: float
    std: float


@jit
def _draw_tied(
    out,
    parts,
    loc,
    centre,
    row_logs,
    column_logs,
    keys,
    prior_mean,
    half_precision,
    constant,
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
    MEASURED: constexpr,
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
    mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32) if WITH_LOC or MEASURED else 0.0
    if MEASURED:
        distance = distance_of(mean, centre, prior_mean, offset, mask, CENTRED)
        each = divergence(std, distance, half_precision, constant, mask)
        tl.store(parts + tl.program_id(0), tl.sum(tl.sum(each, 1), 0))
    # Rows begin at a multiple of four numbers, so that no four of them lie in two rows.
    fours = column_tile * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    counters = (row * tl.cdiv(columns, 4))[:, None] + fours[None, :]
    for s in range(n):
        draw = std * normals(tl.load(keys + s), counters)
        if WITH_LOC:
            draw += mean
        tl.store(out + offset, draw.to(out.dtype.element_ty), mask=mask)
        # Step by step: together the samples may have more elements than 32 bits count.
        out += rows * columns


@jit
def _tied_slopes(
    grad,
    grad_divergence,
    grad_loc,
    row_parts,
    column_parts,
    loc,
    centre,
    row_logs,
    column_logs,
    keys,
    prior_mean,
    half_precision,
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
    MEASURED: constexpr,
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
    offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
    fours = column_tile * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
    counters = (row * tl.cdiv(columns, 4))[:, None] + fours[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    slope = tl.zeros((ROWS, COLUMNS), tl.float32)
    for s in range(n):
        g = tl.load(grad + offset, mask=mask, other=0.0).to(tl.float32)
        if NEED_LOC and WITH_LOC:
            total += g
        if NEED_STD:
            slope += g * normals(tl.load(keys + s), counters)
        grad += rows * columns
    h = tl.load(grad_divergence).to(tl.float32) if MEASURED else 0.0
    if NEED_LOC:
        if MEASURED:
            mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32)
            total += h * 2.0 * half_precision * distance_of(mean, centre, prior_mean, offset, mask, CENTRED)
        tl.store(grad_loc + offset, total.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        entry = column_entries(column, columns, period, ROTATED)
        if MEASURED:
            std = tied_std(row_logs, column_logs, row, entry, row_mask, column_mask, RANK, ROWS, COLUMNS)
            # Draws alone have a gradient where standard deviations are 0, too.
            slope += tl.where(h != 0, h * std_slope(std, half_precision, mask), 0.0)
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
            SINGLE,
        )


@jit
def _draw_free(
    out,
    parts,
    loc,
    centre,
    raw_std,
    keys,
    prior_mean,
    half_precision,
    constant,
    n,
    size,
    BLOCK: constexpr,
    WITH_LOC: constexpr,
    MEASURED: constexpr,
    CENTRED: constexpr,
):
    pid = tl.program_id(0)
    position = pid * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    std = softplus(tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32))
    mean = tl.load(loc + position, mask=mask, other=0.0).to(tl.float32) if WITH_LOC or MEASURED else 0.0
    if MEASURED:
        distance = distance_of(mean, centre, prior_mean, position, mask, CENTRED)
        tl.store(parts + pid, tl.sum(divergence(std, distance, half_precision, constant, mask), 0))
    counters = pid * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    for s in range(n):
        draw = std * normals(tl.load(keys + s), counters)
        if WITH_LOC:
            draw += mean
        tl.store(out + position, draw.to(out.dtype.element_ty), mask=mask)
        out += size


@jit
def _free_slopes(
    grad,
    grad_divergence,
    grad_loc,
    grad_raw,
    loc,
    centre,
    raw_std,
    keys,
    prior_mean,
    half_precision,
    n,
    size,
    BLOCK: constexpr,
    WITH_LOC: constexpr,
    MEASURED: constexpr,
    CENTRED: constexpr,
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
        if NEED_LOC and WITH_LOC:
            total += g
        if NEED_STD:
            slope += g * normals(tl.load(keys + s), counters)
        grad += size
    h = tl.load(grad_divergence).to(tl.float32) if MEASURED else 0.0
    if NEED_LOC:
        if MEASURED:
            mean = tl.load(loc + position, mask=mask, other=0.0).to(tl.float32)
            total += h * 2.0 * half_precision * distance_of(mean, centre, prior_mean, position, mask, CENTRED)
        tl.store(grad_loc + position, total.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        raw = tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32)
        if MEASURED:
            slope += tl.where(h != 0, h * std_slope(softplus(raw), half_precision, mask), 0.0)
        tl.store(grad_raw + position, (slope * sigmoid(raw)).to(grad_raw.dtype.element_ty), mask=mask)


def draw_tied(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    layout: MatrixLayout,
    with_loc: bool,
    dtype: torch.dtype,
    prior: GaussianPrior | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `_draw_tied`; the divergence is empty where there is no prior."""
    n = keys.shape[0]
    out = empty_draws(n, loc, dtype)
    tiles = tiles_of(layout, log_u.shape[1], *_DRAW_TILE)
    parts = scratch((tiles.count if prior else 0,), loc)
    with on_device(loc):
        _draw_tied[(tiles.count,)](
            out,
            parts,
            loc,
            _centre(prior, loc),
            *rows_and_columns(layout, log_u, log_v),
            keys,
            **_measuring(prior),
            n=n,
            **tiles.arguments,
            WITH_LOC=with_loc,
            num_warps=tiles.warps,
        )
        return out, sum_of_tiles(parts) if prior else parts


def tied_slopes(
    grad: Tensor,
    grad_divergence: Tensor,
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    layout: MatrixLayout,
    with_loc: bool,
    prior: GaussianPrior | None,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run `_tied_slopes`; gradients that are not needed are empty, and without a prior `loc` is not looked at."""
    grad_loc = empty_draws(1, grad[0], loc_dtype)[0] if need_loc else grad.new_empty(0)
    tiles = tiles_of(layout, log_u.shape[1], **(_SLOPE_TILE if prior is None else _MEASURED_SLOPE_TILE))
    slopes = FactorSlopes(tiles, log_u, log_v) if need_std else None
    with on_device(grad):
        _tied_slopes[(tiles.count,)](
            grad,
            grad_divergence,
            grad_loc,
            grad if slopes is None else slopes.row_parts,
            grad if slopes is None else slopes.column_parts,
            loc,
            _centre(prior, loc),
            *rows_and_columns(layout, log_u, log_v),
            keys,
            **_measuring(prior, constant=False),
            n=keys.shape[0],
            **tiles.arguments,
            WITH_LOC=with_loc,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
            SINGLE=tiles.count == 1,
            num_warps=tiles.warps,
        )
        grads = (grad.new_empty(0), grad.new_empty(0)) if slopes is None else slopes.gradients()
    return grad_loc, *grads


def draw_free(
    loc: Tensor,
    raw_std: Tensor,
    keys: Tensor,
    with_loc: bool,
    dtype: torch.dtype,
    prior: GaussianPrior | None = None,
) -> tuple[Tensor, Tensor]:
    """Run `_draw_free`; the divergence is empty where there is no prior."""
    n, size = keys.shape[0], loc.numel()
    out = empty_draws(n, loc, dtype)
    count = blocks(size, _BLOCK)
    parts = scratch((count if prior else 0,), loc)
    with on_device(loc):
        _draw_free[(count,)](
            out,
            parts,
            loc,
            _centre(prior, loc),
            raw_std,
            keys,
            **_measuring(prior),
            n=n,
            size=size,
            BLOCK=_BLOCK,
            WITH_LOC=with_loc,
        )
        return out, sum_of_tiles(parts) if prior else parts


def free_slopes(
    grad: Tensor,
    grad_divergence: Tensor,
    loc: Tensor,
    raw_std: Tensor,
    keys: Tensor,
    with_loc: bool,
    prior: GaussianPrior | None,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor]:
    """Run `_free_slopes`; gradients that are not needed are empty, and without a prior `loc` is not looked at."""
    size = raw_std.numel()
    grad_loc = torch.empty_like(raw_std, dtype=loc_dtype) if need_loc else grad.new_empty(0)
    grad_raw = torch.empty_like(raw_std) if need_std else grad.new_empty(0)
    with on_device(grad):
        _free_slopes[(blocks(size, _BLOCK),)](
            grad,
            grad_divergence,
            grad_loc,
            grad_raw,
            loc,
            _centre(prior, loc),
            raw_std,
            keys,
            **_measuring(prior, constant=False),
            n=keys.shape[0],
            size=size,
            BLOCK=_BLOCK,
            WITH_LOC=with_loc,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
        )
    return grad_loc, grad_raw


def _centre(prior: GaussianPrior | None, otherwise: Tensor) -> Tensor:
    return otherwise if prior is None or prior.centre is None else prior.centre


def _measuring(prior: GaussianPrior | None, constant: bool = True) -> dict[str, Any]:
    """What the kernels are told about the prior; without one they do not look at it."""
    mean, std = (0.0, 1.0) if prior is None else (prior.mean, prior.std)
    found: dict[str, Any] = prior_arguments(mean, std)
    if constant:
        found["constant"] = constant_of(std)
    return found | {"MEASURED": prior is not None, "CENTRED": prior is not None and prior.centre is not None}
