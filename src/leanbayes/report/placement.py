"""Where labels go so that they cover neither each other nor the points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leanbayes.report.svg import FONT_PX, text_width

# What a point keeps free of the labels of others, to each side: a label just beside a point would be taken for its own.
_POINT_PX = (14, 8)
_BETWEEN_PX = 5  # between labels on one line
_DISTANCES_PX = (10, 16, 26, 38, 52, 68, 86)
_DIRECTIONS = 16


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)

    def inside(self, bounds: Box) -> bool:
        """Whether all of it lies in `bounds`."""
        return (
            self.left >= bounds.left
            and self.right <= bounds.right
            and self.top >= bounds.top
            and self.bottom <= bounds.bottom
        )


@dataclass(frozen=True)
class Place:
    """Where a label goes.

    Attributes:
        box: What it covers.
        distance: From the point to its near side.
        near: The place of its near side.
        anchor: Where its text starts: "start", "middle" or "end".
    """

    box: Box
    distance: float
    near: tuple[float, float]
    anchor: str

    @property
    def x(self) -> float:
        """Where the anchor is."""
        return {"start": self.box.left, "end": self.box.right}.get(self.anchor, (self.box.left + self.box.right) / 2)


def place_labels(
    points: Sequence[tuple[float, float]], labels: Sequence[str], bounds: Box, obstacles: Sequence[Box] = ()
) -> list[Place]:
    """Find a place for each label near its point.

    Labels are placed one after the other, each at the nearest free place; of several orders the one with the least
    overlap, then the least distance, is taken.

    Args:
        points: In pixels.
        labels: One per point.
        bounds: The rectangle that no label leaves.
        obstacles: What else is not to be covered.

    Returns:
        One place per point.
    """
    if not points:
        return []
    count = len(points)
    orders = [
        sorted(range(count), key=lambda i: sign * points[i][dimension]) for dimension in (0, 1) for sign in (1, -1)
    ]
    crowded = sorted(range(count), key=lambda i: sorted(math.dist(points[i], p) for p in points)[min(2, count - 1)])
    tries = [_place_in_order(points, labels, bounds, obstacles, order) for order in (crowded, *orders)]
    return min(tries, key=lambda found: found[0])[1]


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as possible to the wanted ones, in the same order, at least `gap` apart.

    Example:
        >>> spread_out([10, 11, 40], gap=12, low=0, high=100)
        [4.5, 16.5, 40.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    # Runs of labels that touch: each lies around the mean of what its members want.
    runs: list[list[float]] = []  # [mean of the wanted first positions, members]
    for index in order:
        runs.append([float(wanted[index]), 1.0])
        while len(runs) > 1 and _first(runs[-2], gap, low, high) + runs[-2][1] * gap > _first(runs[-1], gap, low, high):
            start, members = runs.pop()
            before, count = runs[-1]
            # The later run's first label stands `count` gaps after the earlier run's first.
            runs[-1] = [(before * count + (start - count * gap) * members) / (count + members), count + members]
    positions = [_first(run, gap, low, high) + i * gap for run in runs for i in range(int(run[1]))]
    placed = [0.0] * len(wanted)
    for index, position in zip(order, positions):
        placed[index] = position
    return placed


def _first(run: list[float], gap: float, low: float, high: float) -> float:
    return max(min(run[0], high - (run[1] - 1) * gap), low)


def _place_in_order(
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    bounds: Box,
    obstacles: Sequence[Box],
    order: Sequence[int],
) -> tuple[tuple[float, float], list[Place]]:
    across, down = _POINT_PX
    marks = [Box(x - across, y - down, x + across, y + down) for x, y in points]
    taken = list(obstacles)
    places: dict[int, Place] = {}
    total_overlap = 0.0
    for index in order:
        others = [mark for point, mark in zip(points, marks) if point != points[index]]
        overlap, place = _nearest_free(
            points[index], text_width(labels[index]) + _BETWEEN_PX, bounds, [*taken, *others]
        )
        places[index] = place
        taken.append(place.box)
        total_overlap += overlap
    distance = sum(place.distance for place in places.values())
    return (total_overlap, distance), [places[index] for index in range(len(points))]


def _nearest_free(point: tuple[float, float], width: float, bounds: Box, taken: Sequence[Box]) -> tuple[float, Place]:
    best: tuple[float, Place] | None = None
    for place in _candidates(point, width):
        if not place.box.inside(bounds):
            continue
        overlap = sum(place.box.overlap(other) for other in taken)
        if overlap == 0:
            return 0.0, place
        if best is None or overlap < best[0]:
            best = overlap, place
    # A label that is wider than the plot fits nowhere: it starts at the point.
    return best or (0.0, next(iter(_candidates(point, width))))


def _candidates(point: tuple[float, float], width: float) -> list[Place]:
    x, y = point
    height = FONT_PX + 2
    found = []
    for distance in _DISTANCES_PX:
        for step in range(_DIRECTIONS):
            # Right first, then left, then the rest: horizontal places are read most easily.
            turn = 2 * math.pi * step / _DIRECTIONS
            across, down = math.cos(turn), math.sin(turn)
            near = x + across * distance, y + down * distance
            anchor = "start" if across > 0.1 else "end" if across < -0.1 else "middle"
            left = near[0] - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
            top = near[1] - height / 2 + down * height / 2
            place = Place(Box(left, top, left + width, top + height), distance, near, anchor)
            found.append((distance, abs(down), -across, place))
    return [place for *_, place in sorted(found, key=lambda item: item[:3])]
