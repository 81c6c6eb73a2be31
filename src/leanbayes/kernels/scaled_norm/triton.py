"""Batch normalisation between two rank-1 layers, in Triton.

Tensors ``[N, C, H, W]`` have their channels last in memory. A program takes one row and some channels, so that sums
over the positions of a row, which the gradients of its factors are, cost nothing beside those of the norm. Loops have
the next tiles on their way from memory while they work on one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels._launch import blocks, on_device, power_of_two, scratch
from leanbayes.kernels._triton import constexpr, jit, tl
from leanbayes.kernels.scaled_norm.reference import TINY, Gradients, Saved, Settings

_TINY = constexpr(TINY)
# Tiles that an H200 is fast with: positions from which on a line holds, channels at most, elements, warps. Where a row
# has few positions, wide tiles let a thread keep its channels to itself: sums over threads are what takes time.
_TILES = ((512, 64, 2048, 4), (128, 64, 1024, 2), (32, 128, 1024, 2), (0, 512, 1024, 2))
_SUM_CHANNELS, _SUM_ELEMENTS = 512, 2048


@jit
def _factor(pointer, row, c, inside, C, HAS: constexpr):
    if HAS:
        return tl.load(pointer + row * C + c, mask=inside, other=1.0).to(tl.float32)
    return tl.full(c.shape, 1.0, tl.float32)


@jit
def _nonzero_factor(pointer, row, c, inside, C, HAS: constexpr):
    value = _factor(pointer, row, c, inside, C, HAS)
    return tl.where(value == 0.0, _TINY, value)


@jit
def row_sums(y, row_mean, row_squares, P, C, POSITIONS: constexpr, CHANNELS: constexpr):
    """Mean and squared distances of the channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    base = y + row * P * C + c
    # Distances from the first value: sums of squares would lose what is left of them.
    shift = tl.load(base, mask=inside, other=0.0).to(tl.float32)
    # Whole tiles are summed, and their positions once at the end: threads that wait for each other cost more.
    totals = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    all_squares = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for start in tl.range(0, P, POSITIONS, num_stages=3):
        p = start + tl.arange(0, POSITIONS)
        mask = (p < P)[:, None] & inside[None, :]
        value = tl.load(base[None, :] + p[:, None] * C, mask=mask, other=0.0).to(tl.float32)
        distance = tl.where(mask, value - shift[None, :], 0.0)
        totals += distance
        all_squares += distance * distance
    total, squares = tl.sum(totals, 0), tl.sum(all_squares, 0)
    tl.store(row_mean + row * C + c, shift + total / P, mask=inside)
    tl.store(row_squares + row * C + c, tl.maximum(squares - total * total / P, 0.0), mask=inside)


@jit
def channel_moments(
    row_mean, row_squares, r, mean, var, N, P, C, HAS_R: constexpr, ROWS: constexpr, CHANNELS: constexpr
):
    """Mean and variance of each channel from those of the rows."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(0, N, ROWS):
        n = start + tl.arange(0, ROWS)
        mask = (n < N)[:, None] & inside[None, :]
        place = n[:, None] * C + c[None, :]
        m = tl.load(row_mean + place, mask=mask, other=0.0)
        if HAS_R:
            m *= tl.load(r + place, mask=mask, other=0.0).to(tl.float32)
        total += m
    centre = tl.sum(total, 0) / N
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(0, N, ROWS):
        n = start + tl.arange(0, ROWS)
        mask = (n < N)[:, None] & inside[None, :]
        place = n[:, None] * C + c[None, :]
        m = tl.load(row_mean + place, mask=mask, other=0.0)
        q = tl.load(row_squares + place, mask=mask, other=0.0)
        if HAS_R:
            f = tl.load(r + place, mask=mask, other=0.0).to(tl.float32)
            m *= f
            q *= f * f
        distance = tl.where(mask, m - centre[None, :], 0.0)
        squares += q + P * distance * distance
    tl.store(mean + c, centre, mask=inside)
    tl.store(var + c, tl.sum(squares, 0) / N / P, mask=inside)


@jit
def apply_norm(
    y,
    r,
    weight,
    bias,
    residual,
    s,
    mean,
    var,
    plain,
    scaled,
    eps,
    P,
    C,
    HAS_R: constexpr,
    HAS_RESIDUAL: constexpr,
    HAS_S: constexpr,
    RELU: constexpr,
    PLAIN: constexpr,
    POSITIONS: constexpr,
    CHANNELS: constexpr,
):
    """Normalise one row, add the residual, cut off below 0, and scale."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    slope = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    slope *= 1.0 / tl.sqrt(tl.load(var + c, mask=inside, other=1.0).to(tl.float32) + eps)
    centre = tl.load(mean + c, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32) - centre * slope
    slope *= _factor(r, row, c, inside, C, HAS_R)
    second = _nonzero_factor(s, row, c, inside, C, HAS_S)
    base = row * P * C
    for start in tl.range(0, P, POSITIONS, num_stages=3):
        p = start + tl.arange(0, POSITIONS)
        mask = (p < P)[:, None] & inside[None, :]
        place = base + p[:, None] * C + c[None, :]
        z = tl.load(y + place, mask=mask, other=0.0).to(tl.float32) * slope[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            z = tl.maximum(z, 0.0)
        if PLAIN:
            tl.store(plain + place, z.to(plain.dtype.element_ty), mask=mask)
        if HAS_S:
            tl.store(scaled + place, (z * second[None, :]).to(scaled.dtype.element_ty), mask=mask)


@jit
def _gradient_tile(
    grad_plain,
    grad_scaled,
    y,
    output,
    place,
    mask,
    slope,
    shift,
    second,
    HAS_RESIDUAL: constexpr,
    HAS_S: constexpr,
    RELU: constexpr,
    PLAIN: constexpr,
):
    """The gradient before the cut at 0, the input, and the gradient of the second scale, of one tile."""
    value = tl.load(y + place, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        a = tl.load(output + place, mask=mask, other=0.0).to(tl.float32) / second[None, :]
    else:
        a = value * slope[None, :] + shift[None, :]
        if RELU:
            a = tl.maximum(a, 0.0)
    g = tl.zeros(value.shape, tl.float32)
    of_second = tl.zeros(value.shape, tl.float32)
    if PLAIN:
        g += tl.load(grad_plain + place, mask=mask, other=0.0).to(tl.float32)
    if HAS_S:
        outer = tl.load(grad_scaled + place, mask=mask, other=0.0).to(tl.float32)
        g += outer * second[None, :]
        of_second = tl.where(mask, outer * a, 0.0)
    if RELU:
        g = tl.where(a != 0.0, g, 0.0)
    return tl.where(mask, g, 0.0), value, of_second


@jit
def gradient_sums(
    grad_plain,
    grad_scaled,
    y,
    r,
    weight,
    bias,
    output,
    s,
    mean,
    var,
    row_mean,
    sums,
    products,
    grad_s,
    eps,
    P,
    C,
    HAS_R: constexpr,
    HAS_RESIDUAL: constexpr,
    HAS_S: constexpr,
    RELU: constexpr,
    PLAIN: constexpr,
    POSITIONS: constexpr,
    CHANNELS: constexpr,
):
    """Sums over the positions of one row: of the gradient, of it times the centred input, and of the second scale's."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    slope = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    slope *= 1.0 / tl.sqrt(tl.load(var + c, mask=inside, other=1.0) + eps)
    shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + c, mask=inside, other=0.0) * slope
    slope *= _factor(r, row, c, inside, C, HAS_R)
    second = _nonzero_factor(s, row, c, inside, C, HAS_S)
    centre = tl.load(row_mean + row * C + c, mask=inside, other=0.0)
    base = row * P * C
    totals = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    all_products = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    outer = tl.zeros((POSITIONS, CHANNELS), tl.float32)
    for start in tl.range(0, P, POSITIONS, num_stages=3):
        p = start + tl.arange(0, POSITIONS)
        mask = (p < P)[:, None] & inside[None, :]
        place = base + p[:, None] * C + c[None, :]
        g, value, of_second = _gradient_tile(
            grad_plain, grad_scaled, y, output, place, mask, slope, shift, second, HAS_RESIDUAL, HAS_S, RELU, PLAIN
        )
        totals += g
        all_products += g * (value - centre[None, :])
        outer += of_second
    tl.store(sums + row * C + c, tl.sum(totals, 0), mask=inside)
    tl.store(products + row * C + c, tl.sum(all_products, 0), mask=inside)
    if HAS_S:
        tl.store(grad_s + row * C + c, tl.sum(outer, 0).to(grad_s.dtype.element_ty), mask=inside)


@jit
def gradient_of_norm(
    sums,
    products,
    row_mean,
    r,
    mean,
    var,
    grad_weight,
    grad_bias,
    eps,
    N,
    C,
    HAS_R: constexpr,
    ROWS: constexpr,
    CHANNELS: constexpr,
):
    """Gradients of the norm's scale and shift from the sums of the rows."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    centre = tl.load(mean + c, mask=inside, other=0.0)
    rstd = 1.0 / tl.sqrt(tl.load(var + c, mask=inside, other=1.0) + eps)
    of_bias = tl.zeros((ROWS, CHANNELS), tl.float32)
    of_weight = tl.zeros((ROWS, CHANNELS), tl.float32)
    for start in range(0, N, ROWS):
        n = start + tl.arange(0, ROWS)
        mask = (n < N)[:, None] & inside[None, :]
        place = n[:, None] * C + c[None, :]
        total = tl.load(sums + place, mask=mask, other=0.0)
        product = tl.load(products + place, mask=mask, other=0.0)
        m = tl.load(row_mean + place, mask=mask, other=0.0)
        if HAS_R:
            f = tl.load(r + place, mask=mask, other=0.0).to(tl.float32)
            product *= f
            m *= f
        of_bias += total
        of_weight += tl.where(mask, product + (m - centre[None, :]) * total, 0.0)
    tl.store(grad_bias + c, tl.sum(of_bias, 0), mask=inside)
    tl.store(grad_weight + c, tl.sum(of_weight, 0) * rstd, mask=inside)


@jit
def gradient_of_input(
    grad_plain,
    grad_scaled,
    y,
    r,
    weight,
    bias,
    output,
    s,
    mean,
    var,
    row_mean,
    row_squares,
    sums,
    products,
    grad_weight,
    grad_bias,
    grad_y,
    grad_r,
    grad_residual,
    eps,
    N,
    P,
    C,
    HAS_R: constexpr,
    HAS_RESIDUAL: constexpr,
    HAS_S: constexpr,
    RELU: constexpr,
    PLAIN: constexpr,
    POSITIONS: constexpr,
    CHANNELS: constexpr,
):
    """Gradients of one row: of the input, of its first scale, and of the residual."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = c < C
    gamma = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.load(var + c, mask=inside, other=1.0) + eps)
    centre = tl.load(mean + c, mask=inside, other=0.0)
    first = _factor(r, row, c, inside, C, HAS_R)
    second = _nonzero_factor(s, row, c, inside, C, HAS_S)
    slope = gamma * rstd
    shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32) - centre * slope
    count = N * P * 1.0
    of_bias = tl.load(grad_bias + c, mask=inside, other=0.0) / count
    of_weight = tl.load(grad_weight + c, mask=inside, other=0.0) / count
    base = row * P * C
    for start in tl.range(0, P, POSITIONS, num_stages=3):
        p = start + tl.arange(0, POSITIONS)
        mask = (p < P)[:, None] & inside[None, :]
        place = base + p[:, None] * C + c[None, :]
        g, value, _ = _gradient_tile(
            grad_plain,
            grad_scaled,
            y,
            output,
            place,
            mask,
            slope * first,
            shift,
            second,
            HAS_RESIDUAL,
            HAS_S,
            RELU,
            PLAIN,
        )
        xhat = (value * first[None, :] - centre[None, :]) * rstd[None, :]
        inner = slope[None, :] * (g - of_bias[None, :] - xhat * of_weight[None, :])
        tl.store(grad_y + place, (inner * first[None, :]).to(grad_y.dtype.element_ty), mask=mask)
        if HAS_RESIDUAL:
            tl.store(grad_residual + place, g.to(grad_residual.dtype.element_ty), mask=mask)
    if HAS_R:
        # The sum of the inner gradient times the input, from sums that are there already.
        own = row * C + c
        m = tl.load(row_mean + own, mask=inside, other=0.0)
        total = tl.load(sums + own, mask=inside, other=0.0)
        product = tl.load(products + own, mask=inside, other=0.0)
        squares = tl.load(row_squares + own, mask=inside, other=0.0)
        around = product - of_weight * rstd * first * squares
        along = total - P * of_bias - of_weight * rstd * P * (m * first - centre)
        tl.store(grad_r + own, (slope * (around + m * along)).to(grad_r.dtype.element_ty), mask=inside)


class _Tiles(NamedTuple):
    """Programs that each take one row and some channels, and what they are told."""

    grid: tuple[int, int]
    arguments: dict[str, Any]


class _Grid:
    """Programs for a tensor ``[N, C, H, W]``, and what kernels are told about it."""

    def __init__(self, y: Tensor) -> None:
        self.rows, self.channels = y.shape[:2]
        self.positions = y.shape[2] * y.shape[3]
        # Sums over rows have few programs: narrow blocks make more of them, and long ones of fewer steps.
        self.narrow = min(4, power_of_two(self.channels))
        self.columns = (blocks(self.channels, self.narrow),)

    def by_row(self) -> _Tiles:
        """Of kernels that go through the positions of a row."""
        _, channels, elements, warps = next(line for line in _TILES if self.positions >= line[0])
        return self._tiles(channels, elements, warps)

    def sums_by_row(self) -> _Tiles:
        """Of kernels that read the positions of a row and write their sums alone."""
        return self._tiles(_SUM_CHANNELS, _SUM_ELEMENTS, 1)

    def _tiles(self, most: int, elements: int, warps: int) -> _Tiles:
        # The largest block that leaves no thread without a channel, if that is not too narrow.
        block = min(most, self.channels & -self.channels)
        if block < 64:
            block = min(64, power_of_two(self.channels))
        positions = min(max(elements // block, 1), power_of_two(self.positions))
        arguments = {"P": self.positions, "C": self.channels, "POSITIONS": positions, "CHANNELS": block}
        return _Tiles((self.rows, blocks(self.channels, block)), {**arguments, "num_warps": warps})

    def by_channel(self) -> dict[str, Any]:
        """Arguments of kernels that go through the rows of a channel."""
        return {"N": self.rows, "C": self.channels, "ROWS": min(512, power_of_two(self.rows)), "CHANNELS": self.narrow}


def forward_triton(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    settings: Settings,
) -> tuple[Tensor | None, Tensor | None, Saved]:
    """See `forward_reference`; all of them with channels last."""
    grid = _Grid(y)
    sums = grid.sums_by_row()
    like = (grid.rows, grid.channels)
    saved = Saved(scratch(like[1:], y), scratch(like[1:], y), scratch(like, y), scratch(like, y))
    with on_device(y):
        row_sums[sums.grid](y, saved.row_mean, saved.row_squares, **sums.arguments)
        channel_moments[grid.columns](
            saved.row_mean,
            saved.row_squares,
            r,
            saved.mean,
            saved.var,
            P=grid.positions,
            HAS_R=r is not None,
            **grid.by_channel(),
        )
    return *apply_triton(y, r, weight, bias, residual, s, saved.mean, saved.var, settings), saved


def apply_triton(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    mean: Tensor,
    var: Tensor,
    settings: Settings,
) -> tuple[Tensor | None, Tensor | None]:
    """See `apply_reference`; all of them with channels last."""
    tiles = _Grid(y).by_row()
    plain = torch.empty_like(y) if settings.plain or s is None else None
    scaled = None if s is None else torch.empty_like(y)
    with on_device(y):
        apply_norm[tiles.grid](
            y,
            r,
            weight,
            bias,
            residual,
            s,
            mean,
            var,
            plain,
            scaled,
            settings.eps,
            HAS_R=r is not None,
            HAS_RESIDUAL=residual is not None,
            HAS_S=s is not None,
            RELU=settings.relu,
            PLAIN=plain is not None,
            **tiles.arguments,
        )
    return plain, scaled


def backward_triton(
    grad_plain: Tensor | None,
    grad_scaled: Tensor | None,
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    output: Tensor | None,
    s: Tensor | None,
    saved: Saved,
    settings: Settings,
    has_residual: bool,
) -> Gradients:
    """See `backward_reference`; all of them with channels last."""
    grid = _Grid(y)
    tiles = grid.by_row()
    like = (grid.rows, grid.channels)
    sums, products = scratch(like, y), scratch(like, y)
    grad_weight, grad_bias = scratch(like[1:], y), scratch(like[1:], y)
    grad_y = torch.empty_like(y)
    grad_r = None if r is None else torch.empty_like(r)
    grad_residual = torch.empty_like(y) if has_residual else None
    if s is not None and grad_scaled is None:
        grad_scaled = torch.zeros_like(y)
    grad_s = None if s is None else torch.empty_like(s)
    known: dict[str, Any] = {
        "HAS_R": r is not None,
        "HAS_RESIDUAL": has_residual,
        "HAS_S": s is not None,
        "RELU": settings.relu,
        "PLAIN": grad_plain is not None,
    }
    inputs = (grad_plain, grad_scaled, y, r, weight, bias, output, s, saved.mean, saved.var, saved.row_mean)
    with on_device(y):
        gradient_sums[tiles.grid](*inputs, sums, products, grad_s, settings.eps, **known, **tiles.arguments)
        gradient_of_norm[grid.columns](
            sums,
            products,
            saved.row_mean,
            r,
            saved.mean,
            saved.var,
            grad_weight,
            grad_bias,
            settings.eps,
            HAS_R=r is not None,
            **grid.by_channel(),
        )
        gradient_of_input[tiles.grid](
            *inputs,
            saved.row_squares,
            sums,
            products,
            grad_weight,
            grad_bias,
            grad_y,
            grad_r,
            grad_residual,
            settings.eps,
            grid.rows,
            **known,
            **tiles.arguments,
        )
    return Gradients(grad_y, grad_r, grad_weight, grad_bias, grad_residual, grad_s)
