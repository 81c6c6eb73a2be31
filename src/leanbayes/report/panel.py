"""The frame that all small plots share."""

from __future__ import annotations

from leanbayes.report.markup import Markup, tag
from leanbayes.report.svg import Axis

WIDTH, HEIGHT = 190, 165
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 8, 38


def axes(x: tuple[float, float], y: tuple[float, float]) -> tuple[Axis, Axis]:
    """Both axes of a small plot, from their ends."""
    return Axis(*x, LEFT, WIDTH - RIGHT), Axis(*y, HEIGHT - BOTTOM, TOP)


def swatch(shape: Markup) -> Markup:
    """A mark for the legend, in no method's colour."""
    return tag("svg", shape, viewBox="0 0 14 14", width="14", height="14", aria_hidden="true", class_="key c-ink")
