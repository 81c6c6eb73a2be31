"""The divergence and its gradients, each in one pass over the weight and one over the sums of its tiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
from leanbayes.kernels._triton import FAST_MATH, constexpr, jit, libdevice, tl

_TILE = (4096, 128)
# Square, since each tile leaves one part per row and one per column.
_SLOPE_TILE = (4096, 64)
_BLOCK = 2048
_SUM_BLOCK = 1024


@jit
def _distance(loc, centre, prior_mean, offset, mask, CENTRED: constexpr):
    """How far means are from the prior's; 0 where masked."""
    mean = tl.load(loc + offset, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        return mean - tl.load(centre + offset, mask=mask, other=0.0).to(tl.float32)
    else:
        return mean - prior_mean


@jit
def _divergence(std, distance, half_precision, constant, mask):
    # The fast one is off by 2^-22 at most next to 1, and relative to its value elsewhere.
    if FAST_MATH:
        log = libdevice.fast_logf(std)
    else:
        log = tl.log(std)
    return tl.where(mask, (std * std + distance * distance) * half_precision - log + constant, 0.0)


@jit
def _std_slope(std, half_precision, mask):
    return tl.where(mask, 2.0 * half_precision * std - 1.0 / std, 0.0)


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
    distance = _distance(loc, centre, prior_mean, offset, mask, CENTRED)
    tl.store(parts + tl.program_id(0), tl.sum(tl.sum(_divergence(std, distance, half_precision, constant, mask), 1), 0))


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
):
    row_tile, column_tile = tile_of(columns, ROWS, COLUMNS)
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    g = tl.load(grad).to(tl.float32)
    if NEED_LOC:
        offset = (row * row_stride)[:, None] + column_offsets(column, run, run_stride, SPLIT)[None, :]
        slope = g * 2.0 * half_precision * _distance(loc, centre, prior_mean, offset, mask, CENTRED)
        tl.store(grad_loc + offset, slope.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        entry = column_entries(column, columns, period, ROTATED)
        std = tied_std(row_logs, column_logs, row, entry, row_mask, column_mask, RANK, ROWS, COLUMNS)
        store_factor_parts(
            row_parts,
            column_parts,
            g * _std_slope(std, half_precision, mask),
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
def _free_parts(
    parts, loc, centre, raw_std, prior_mean, half_precision, constant, size, BLOCK: constexpr, CENTRED: constexpr
):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = position < size
    std = softplus(tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32))
    distance = _distance(loc, centre, prior_mean, position, mask, CENTRED)
    tl.store(parts + tl.program_id(0), tl.sum(_divergence(std, distance, half_precision, constant, mask), 0))


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
        slope = g * 2.0 * half_precision * _distance(loc, centre, prior_mean, position, mask, CENTRED)
        tl.store(grad_loc + position, slope.to(grad_loc.dtype.element_ty), mask=mask)
    if NEED_STD:
        raw = tl.load(raw_std + position, mask=mask, other=0.0).to(tl.float32)
        slope = g * _std_slope(softplus(raw), half_precision, mask) * sigmoid(raw)
        tl.store(grad_raw + position, slope.to(grad_raw.dtype.element_ty), mask=mask)


@jit
def _sum(parts, out, count, BLOCK: constexpr):
    """The sum of all parts, in float64 and always in the same order."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        position = start + tl.arange(0, BLOCK)
        total += tl.load(parts + position, mask=position < count, other=0.0).to(tl.float64)
    tl.store(out, tl.sum(total, 0).to(tl.float32))


def _total(parts: Tensor) -> Tensor:
    out = scratch((), parts)
    _sum[(1,)](parts, out, parts.numel(), BLOCK=_SUM_BLOCK)
    return out


def _prior(prior_mean: float, prior_std: float) -> dict[str, float]:
    return {"prior_mean": prior_mean, "half_precision": 0.5 / prior_std**2}


def _constant(prior_std: float) -> float:
    return math.log(prior_std) - 0.5


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
            **_prior(prior_mean, prior_std),
            constant=_constant(prior_std),
            **tiles.arguments,
            CENTRED=centre is not None,
            num_warps=tiles.warps,
        )
        return _total(parts)


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
    tiles = tiles_of(layout, log_u.shape[1], *_SLOPE_TILE)
    slopes = FactorSlopes(tiles, grad) if need_std else None
    with on_device(loc):
        _tied_slopes[(tiles.count,)](
            grad,
            grad_loc,
            loc if slopes is None else slopes.row_parts,
            loc if slopes is None else slopes.column_parts,
            loc,
            loc if centre is None else centre,
            *rows_and_columns(layout, log_u, log_v),
            **_prior(prior_mean, prior_std),
            **tiles.arguments,
            CENTRED=centre is not None,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
            num_warps=tiles.warps,
        )
        grads = (loc.new_empty(0), loc.new_empty(0)) if slopes is None else slopes.gradients(log_u, log_v)
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
            **_prior(prior_mean, prior_std),
            constant=_constant(prior_std),
            size=size,
            BLOCK=_BLOCK,
            CENTRED=centre is not None,
        )
        return _total(parts)


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
            **_prior(prior_mean, prior_std),
            size=size,
            BLOCK=_BLOCK,
            CENTRED=centre is not None,
            NEED_LOC=need_loc,
            NEED_STD=need_std,
        )
    return grad_loc, grad_raw
