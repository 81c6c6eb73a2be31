"""Small plots of a regression, one per method: whether intervals keep their promise, and how wide they are."""

from __future__ import annotations

from statistics import NormalDist

from leanbayes.report.blocks import figure, legend, multiples
from leanbayes.report.content import Calibration, Comparison, Entry, Interval
from leanbayes.report.markup import Markup, px, tag
from leanbayes.report.panel import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axes, share_frame, swatch
from leanbayes.report.svg import Axis, axis, frame, line, path, picture, series


def coverage(comparison: Comparison) -> Markup | None:
    """Share of targets within their intervals, against the level of the intervals."""
    count = comparison.evidence.examples.get("test")
    items = [
        (entry, _covered(comparison, entry), _coverage(entry, entry.calibration, count))
        for entry in comparison.done
        if entry.calibration
    ]
    if not items:
        return None
    band = f" Inside the grey band a line is within chance for {count:,} test examples." if count else ""
    return figure(
        "coverage",
        "Share of test targets inside their prediction intervals, against the share there should be. On the dashed "
        "diagonal the intervals keep their promise; below it they are too narrow (over-confident), above it too wide."
        f"{band} From one run.",
        tag("h3", "Coverage"),
        multiples(items),
    )


def position(comparison: Comparison) -> Markup | None:
    """How targets spread over their predictive distributions."""
    found = [(entry, entry.calibration.pit) for entry in comparison.done if entry.calibration]
    found = [(entry, counts) for entry, counts in found if sum(counts) > 0 and len(counts) > 1]
    if not found:
        return None
    top = max(max(*counts, _flat(counts) + _around(counts)) for _, counts in found)
    items = [(entry, "", _position(entry, counts, top)) for entry, counts in found]
    return figure(
        "position",
        "How many targets lie in each tenth of their predictive distributions, from the lowest to the highest. If the "
        "distributions are right, the histogram is flat: within chance (grey band) of the dashed line. A U shape means "
        "too narrow, a hill too wide; a slope means that predictions are too high or too low.",
        tag("h3", "Targets within their predictive distributions"),
        multiples(items),
    )


def intervals(comparison: Comparison) -> Markup | None:
    """Predictions of some test examples with their intervals, and the targets."""
    found = [entry for entry in comparison.done if entry.intervals]
    if not found:
        return None
    ends = [v for e in found for i in e.intervals for v in (i.target, i.mean)]
    reach = [v for e in found for i in e.intervals for v in (i.lower, i.upper)]
    low, high = min(ends), max(ends)
    room = 0.25 * (high - low or 1.0)
    # One method's huge intervals would flatten all others; they run out of the plot instead.
    y = axis([max(min(reach), low - room), min(max(reach), high + room)], HEIGHT - BOTTOM, TOP, log=False)
    items = [(entry, _width(comparison, entry), _intervals(entry, entry.intervals, y)) for entry in found]
    shown = len(found[0].intervals)
    return figure(
        "intervals",
        f"{shown} test examples in the order of their predictions, from one run: the {comparison.level:.0%} interval "
        "(bar) and the true value (dot; hollow where it lies outside). All plots share their axis.",
        tag("h3", "Single test examples"),
        legend((_dot("inside-dot"), "inside its interval"), (_dot("outside-dot"), "outside")),
        multiples(items),
    )


def _covered(comparison: Comparison, entry: Entry) -> str:
    value = entry.mean("coverage")
    return f"{value:.1%} in {comparison.level:.0%} intervals" if value is not None else ""


def _width(comparison: Comparison, entry: Entry) -> str:
    value = entry.mean("width")
    return f"mean width {comparison.measure('width').write(value)}" if value is not None else ""


def _error(share: float, count: int) -> float:
    """Half the width of what is within chance, at the level of 5%."""
    return NormalDist().inv_cdf(0.975) * (share * (1 - share) / count) ** 0.5


def _coverage(entry: Entry, found: Calibration, count: int | None) -> Markup:
    x, y = axes((0, 1), (0, 1))
    points = sorted(zip(found.levels, found.coverage))
    band = None
    if count:
        levels = [i / 20 for i in range(21)]
        edge = [(v, min(1.0, v + _error(v, count))) for v in levels]
        edge += [(v, max(0.0, v - _error(v, count))) for v in reversed(levels)]
        band = tag("path", d="M" + "L".join(f"{px(x(a))} {px(y(b))}" for a, b in edge) + "Z", class_="band")
    dots = [tag("circle", cx=x(a), cy=y(b), r=2.5, class_="dot") for a, b in points]
    return picture(
        WIDTH,
        HEIGHT,
        f"Coverage of the intervals of {entry.title}",
        "; ".join(f"{share:.0%} inside intervals of {level:.0%}" for level, share in points),
        share_frame(x, y, "Nominal level"),
        band,
        line(x(0), y(0), x(1), y(1), "reference"),
        series(entry.index, path([(x(a), y(b)) for a, b in points], "line"), dots),
    )


def _flat(counts: tuple[float, ...]) -> float:
    """How many targets there should be in each part."""
    return sum(counts) / len(counts)


def _around(counts: tuple[float, ...]) -> float:
    """By how many targets a part differs from that by chance."""
    return sum(counts) * _error(1 / len(counts), max(1, round(sum(counts))))


def _position(entry: Entry, counts: tuple[float, ...], most: float) -> Markup:
    bins, flat, room = len(counts), _flat(counts), _around(counts)
    x, y = axes((0, 1), (0, 1.05 * most))
    bars = "".join(
        f"M{px(x(i / bins) + 0.5)} {px(y(0))}V{px(y(count))}H{px(x((i + 1) / bins) - 0.5)}V{px(y(0))}Z"
        for i, count in enumerate(counts)
        if count
    )
    top, bottom = y(flat + room), y(max(0.0, flat - room))
    band = tag("path", d=f"M{px(x.start)} {px(top)}H{px(x.stop)}V{px(bottom)}H{px(x.start)}Z", class_="band")
    return picture(
        WIDTH,
        HEIGHT,
        f"Position of the targets in the predictive distributions of {entry.title}",
        "Targets from the lowest part to the highest: " + ", ".join(f"{count:.0f}" for count in counts),
        frame(
            x,
            y,
            x_ticks=(0, 0.5, 1),
            y_ticks=y.ticks(3),
            x_write=lambda v: f"{v:.0%}",
            y_write=lambda v: f"{v:g}",
            x_title="Predictive quantile",
        ),
        band,
        series(entry.index, tag("path", d=bars, class_="inside soft")),
        line(x.start, y(flat), x.stop, y(flat), "reference"),
    )


def _intervals(entry: Entry, found: tuple[Interval, ...], y: Axis) -> Markup:
    x = Axis(-1, len(found), LEFT, WIDTH - RIGHT)
    outside = sum(not i.lower <= i.target <= i.upper for i in found)

    def held(value: float) -> float:
        return y(min(max(value, y.low), y.high))

    marks = []
    for place, i in enumerate(found):
        kind = "inside-dot" if i.lower <= i.target <= i.upper else "outside-dot"
        marks += [
            line(x(place), held(i.lower), x(place), held(i.upper), "interval"),
            tag("circle", cx=x(place), cy=held(i.target), r=1.8, class_=kind),
        ]
    return picture(
        WIDTH,
        HEIGHT,
        f"Intervals of {entry.title}",
        f"{len(found) - outside} of {len(found)} targets lie inside their intervals",
        frame(
            x,
            y,
            x_ticks=(),
            y_ticks=y.ticks(4),
            x_write=str,
            y_write=lambda v: f"{v:g}",
            x_title="Examples by prediction",
        ),
        series(entry.index, marks),
    )


def _dot(class_: str) -> Markup:
    return swatch(tag("circle", cx="7", cy="7", r="3.5", class_=class_))
