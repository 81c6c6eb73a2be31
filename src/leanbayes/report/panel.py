"""The frame that all small plots share."""

from __future__ import annotations

from leanbayes.report.markup import Markup, tag
from leanbayes.report.svg import Axis, frame

WIDTH, HEIGHT = 190, 165
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 8, 38


def axes(x: tuple[float, float], y: tuple[float, float]) -> tuple[Axis, Axis]:
    """Both axes of a small plot, from their ends."""
    return Axis(*x, LEFT, WIDTH - RIGHT), Axis(*y, HEIGHT - BOTTOM, TOP)


def share_frame(x: Axis, y: Axis, x_title: str) -> Markup:
    """The frame of a plot of shares against shares."""

    def write(share: float) -> str:
        return f"{share:.0%}"

    ticks = (0, 0.5, 1)
    return frame(x, y, x_ticks=ticks, y_ticks=ticks, x_write=write, y_write=write, x_title=x_title)


def swatch(shape: Markup) -> Markup:
    """A mark for the legend, in no method's colour."""
    return tag("svg", shape, viewBox="0 0 14 14", width="14", height="14", aria_hidden="true", class_="key c-ink")
