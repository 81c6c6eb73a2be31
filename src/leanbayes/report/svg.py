"""What all plots share: axes, frames, marks and the names that a screen reader reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leanbayes.report.markup import Child, Markup, join, px, tag

FONT_PX = 12
_CHARACTER_PX = 6.8  # the mean width of a character at FONT_PX, on the generous side
_COLOURS = 12
_SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")
_DASHES = (None, "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Axis:
    """A scale from values to pixels."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round values inside the axis."""
        return _log_ticks(self.low, self.high, count) if self.log else _linear_ticks(self.low, self.high, count)


def axis(
    values: Iterable[float],
    start: float,
    stop: float,
    *,
    log: bool | None = None,
    pad: float = 0.06,
    zero: bool = False,
) -> Axis:
    """An axis that holds all values with some room around.

    Args:
        values: What it must hold.
        start: The pixel of its low end.
        stop: The pixel of its high end.
        log: Logarithmic; None decides by the range.
        pad: Room at each end, relative to the length.
        zero: Whether it starts at zero.

    Returns:
        The axis.
    """
    found = list(values)
    low, high = min(found), max(found)
    log = low > 0 and (high / low > 4 if log is None else log)
    if log:
        room = (high / low) ** pad if high > low else 1.5
        return Axis(low / room, high * room, start, stop, True)
    low = min(low, 0.0) if zero else low
    room = (high - low) * pad if high > low else abs(high) * 0.1 or 1.0
    return Axis(low if zero and low == 0 else low - room, high + room, start, stop)


def text_width(text: str) -> float:
    """About how wide a label is."""
    return len(text) * _CHARACTER_PX


def picture(width: float, height: float, title: str, description: str, *children: Child) -> Markup:
    """An SVG picture with a name and a description."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        children,
        viewBox=f"0 0 {px(width)} {px(height)}",
        width=str(round(width)),
        height=str(round(height)),
        role="img",
        class_="plot",
    )


def frame(
    x: Axis,
    y: Axis,
    *,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_write: Callable[[float], str],
    y_write: Callable[[float], str],
    x_title: str = "",
    y_title: str = "",
) -> Markup:
    """Grid lines, tick labels and titles of a plot; y runs upwards, so its start is at the bottom."""
    left, right, top, bottom = x.start, x.stop, y.stop, y.start
    rows = [
        (line(left, y(t), right, y(t), "grid"), label(left - 6, y(t) + 4, y_write(t), "end", "tick")) for t in y_ticks
    ]
    columns = [
        (line(x(t), bottom, x(t), bottom + 4, "axis"), label(x(t), bottom + 17, x_write(t), "middle", "tick"))
        for t in x_ticks
    ]
    return tag(
        "g",
        rows,
        columns,
        line(left, bottom, right, bottom, "axis"),
        label((left + right) / 2, bottom + 35, x_title, "middle", "title") if x_title else None,
        label(2, top - 10, y_title, "start", "title") if y_title else None,
        class_="frame",
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("path", d=f"M{px(x1)} {px(y1)}L{px(x2)} {px(y2)}", class_=class_)


def label(x: float, y: float, text: str, anchor: str, class_: str) -> Markup:
    """A piece of text."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str, dash: str | None = None) -> Markup:
    """A line through points."""
    return tag("path", d="M" + "L".join(f"{px(x)} {px(y)}" for x, y in points), class_=class_, stroke_dasharray=dash)


def series(index: int, *children: Child) -> Markup:
    """The marks of one method, in its colour, to be highlighted together."""
    return tag("g", children, class_=f"series {colour(index)}", data_method=str(index))


def colour(index: int) -> str:
    """The class that gives a method's colour."""
    return f"c{index % _COLOURS}"


def dash(index: int) -> str | None:
    """The dashes of a method's line; lines of like colours differ in them."""
    return _DASHES[index % len(_DASHES)]


def mark(x: float, y: float, index: int, size: float = 5) -> Markup:
    """A method's shape around a point."""
    return tag("path", d=_outline(_SHAPES[index % len(_SHAPES)], x, y, size), class_="mark")


def key(index: int) -> Markup:
    """A method's shape in its colour, to stand before its name in text."""
    return tag(
        "svg", mark(7, 7, index), viewBox="0 0 14 14", width="14", height="14", aria_hidden="true",
        class_=f"key {colour(index)}",
    )  # fmt: skip


def _outline(shape: str, x: float, y: float, r: float) -> str:
    if shape == "circle":
        return f"M{px(x - r)} {px(y)}a{px(r)} {px(r)} 0 1 0 {px(2 * r)} 0a{px(r)} {px(r)} 0 1 0 {px(-2 * r)} 0Z"
    corners = {
        "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "triangle": [(0, -1.15), (1.1, 0.8), (-1.1, 0.8)],
        "down": [(0, 1.15), (1.1, -0.8), (-1.1, -0.8)],
        "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        "plus": _PLUS,
        "cross": [((a - b) * 0.75, (a + b) * 0.75) for a, b in _PLUS],
    }[shape]
    return "M" + "L".join(f"{px(x + r * a)} {px(y + r * b)}" for a, b in corners) + "Z"


_PLUS = [
    (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
    (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
]  # fmt: skip


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in powers for m in multiples if low <= m * 10.0**p <= high]
        if len(found) <= count + 1:
            break
    if len(found) > count + 1:
        found = found[:: math.ceil(len(found) / count)]
    return found if len(found) >= 2 else _linear_ticks(low, high, count)


def responsive(draw: Callable[[float, float], Markup], height: float) -> Markup:
    """The same plot for wide and for narrow screens, of which the style sheet shows one.

    A wide plot shrunk to a phone could not be read.
    """
    return join(
        tag("div", draw(width, tall), class_=f"variant {name}")
        for name, width, tall in (("wide", 960, height), ("narrow", 350, height))
    )
