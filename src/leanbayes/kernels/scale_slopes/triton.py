"""Gradients of a scaling as a Triton kernel; `reference.py` says what it computes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.kernels._launch import blocks, on_device, power_of_two, scratch
from leanbayes.kernels._layout import memory_order
from leanbayes.kernels._triton import constexpr, jit, tl

# Elements of a tile, and how many of the axis that is contiguous it has at most.
_TILE, _NEIGHBOURS = 2048, 128
# Positions of a program: more are spread over several, whose sums are added up.
_CHUNK = 1024
# Programs along the second axis of a grid at most.
_MOST_CHUNKS = 65535


@dataclass(frozen=True)
class ScaledLayout:
    """A tensor seen as rows, features and positions, each of which has one step in memory.

    Attributes:
        rows: Number of rows, each of which may have a scale of its own.
        features: Number of features.
        positions: Number of entries that share a scale.
        row_step: Steps in memory from row to row.
        feature_step: Steps from feature to feature.
        position_step: Steps from position to position.
    """

    rows: int
    features: int
    positions: int
    row_step: int
    feature_step: int
    position_step: int

    @functools.cached_property
    def tiles(self) -> Tiles:
        """How the kernel goes through it."""
        chunk = min(_CHUNK, power_of_two(self.positions))
        if self.feature_step == 1:
            features = min(_NEIGHBOURS, power_of_two(self.features))
            positions = min(_TILE // features, chunk)
        else:
            positions = min(_NEIGHBOURS, chunk)
            features = min(_TILE // positions, power_of_two(self.features))
        chunks = blocks(self.positions, chunk)
        arguments = {**vars(self), "CHUNK": chunk, "POSITIONS": positions, "FEATURES": features}
        return Tiles(chunks, (self.rows * blocks(self.features, features), chunks), arguments)


class Tiles(NamedTuple):
    """Tiles that cover a tensor.

    Attributes:
        chunks: Programs that share the positions of a row.
        grid: The grid of programs.
        arguments: What the kernel is told.
    """

    chunks: int
    grid: tuple[int, int]
    arguments: dict[str, int]


def scaled_layout(value: Tensor, scale: Tensor) -> ScaledLayout | None:
    """The layout of a tensor whose scale broadcasts along its positions, None where its memory is not so regular.

    Args:
        value: ``[*shape]``.
        scale: Of as many axes, of which those of rows and of features are longer than 1.
    """
    # Sizes that a compiler or an export sees may be symbols, which have no hash.
    find = _find_layout.__wrapped__ if torch.compiler.is_compiling() else _find_layout
    return find(value.shape, value.stride(), scale.shape)


@functools.lru_cache(maxsize=4096)
def _find_layout(shape: Sequence[int], stride: Sequence[int], scale: Sequence[int]) -> ScaledLayout | None:
    """`scaled_layout`, found once, as the backward pass of every layer asks for it."""
    order, size = memory_order(shape, stride), math.prod(shape)
    if order is None or not size:
        return None
    own = [axis for axis in order if scale[axis] > 1]
    shared = [axis for axis in order if scale[axis] == 1]
    # Axes that share a scale have to follow each other in memory, and the others to be in order.
    regular = all(stride[a] == stride[b] * shape[b] for a, b in zip(shared, shared[1:]))
    if len(own) > 2 or own != sorted(own) or not regular:
        return None
    (rows, row_step), (features, feature_step) = ([(1, 0), (1, 0)] + [(shape[a], stride[a]) for a in own])[-2:]
    positions = size // (rows * features)
    if blocks(positions, _CHUNK) > _MOST_CHUNKS:
        return None
    return ScaledLayout(rows, features, positions, row_step, feature_step, stride[shared[-1]] if shared else 0)


@jit
def _scale_slopes(
    grad,
    value,
    scale,
    scaled,
    parts,
    rows,
    features,
    positions,
    row_step,
    feature_step,
    position_step,
    CHUNK: constexpr,
    POSITIONS: constexpr,
    FEATURES: constexpr,
):
    feature_blocks = tl.cdiv(features, FEATURES)
    # Tensors may have more than 2^31 elements.
    row = (tl.program_id(0) // feature_blocks).to(tl.int64)
    feature = ((tl.program_id(0) % feature_blocks) * FEATURES + tl.arange(0, FEATURES)).to(tl.int64)
    chunk = tl.program_id(1)
    inside = feature < features
    factor = tl.load(scale + row * features + feature, mask=inside, other=0.0).to(tl.float32)
    start = row * row_step + feature * feature_step
    total = tl.zeros((POSITIONS, FEATURES), tl.float32)
    for first in range(0, CHUNK, POSITIONS):
        position = chunk * CHUNK + first + tl.arange(0, POSITIONS)
        mask = (position < positions)[:, None] & inside[None, :]
        at = (position.to(tl.int64) * position_step)[:, None] + start[None, :]
        g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
        total += g * tl.load(value + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(scaled + at, (g * factor[None, :]).to(scaled.dtype.element_ty), mask=mask)
    tl.store(parts + (chunk * rows + row) * features + feature, tl.sum(total, 0), mask=inside)


def scale_slopes_triton(grad: Tensor, value: Tensor, scale: Tensor, layout: ScaledLayout) -> tuple[Tensor, Tensor]:
    """See `leanbayes.kernels.scale_slopes.scale_slopes`."""
    scaled, tiles = torch.empty_like(grad), layout.tiles
    parts = scratch((tiles.chunks, layout.rows, layout.features), grad)
    with on_device(grad):
        _scale_slopes[tiles.grid](grad, value, scale.contiguous(), scaled, parts, **tiles.arguments)
    total = parts[0] if tiles.chunks == 1 else parts.sum(0)
    return scaled, total.view(scale.shape)
