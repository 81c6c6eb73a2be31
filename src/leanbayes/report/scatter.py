"""Quality against cost, one labelled point per method."""

from __future__ import annotations

from leanbayes.report.blocks import figure, highlight, switch
from leanbayes.report.choice import first_of
from leanbayes.report.content import Comparison, Entry
from leanbayes.report.markup import Markup
from leanbayes.report.measures import Measure
from leanbayes.report.placement import Box, Place, place_labels
from leanbayes.report.svg import FONT_PX, axis, frame, label, line, mark, picture, responsive, series

_QUALITY = ("accuracy", "rmse", "nll", "lpd")
_CALIBRATION = ("ece", "coverage", "nll", "lpd", "brier")


def quality_against_cost(comparison: Comparison) -> Markup | None:
    """Accuracy, or the error of a regression, against the time that prediction and training take."""
    quality = first_of(comparison, _QUALITY)
    if quality is None:
        return None
    options = [
        (cost, comparison.measure(cost).title, _scatter(comparison, cost, quality))
        for cost in ("predict_ms", "train_seconds")
        if _points(comparison, cost, quality)
    ]
    if not options:
        return None
    y = comparison.measure(quality)
    caption = f"{y.title} against what it costs in time: {_corner(y)}. {_whiskers(comparison)}"
    return figure("quality-cost", caption, switch("cost", "Cost", options, highlight(comparison.done)))


def calibration_against_parameters(comparison: Comparison) -> Markup | None:
    """How trustworthy the probabilities are, against the number of parameters."""
    size = "overhead" if comparison.having("overhead") else "parameters"
    options = [
        (key, comparison.measure(key).title, _scatter(comparison, size, key))
        for key in _CALIBRATION
        if _points(comparison, size, key)
    ][:3]
    if not options:
        return None
    relative = " relative to the plain network" if size == "overhead" else ""
    first = comparison.measure(options[0][0])
    caption = f"{first.title} against the number of parameters{relative}: {_corner(first)}. {_whiskers(comparison)}"
    return figure(
        "calibration-parameters", caption, switch("calibration", "Measure", options, highlight(comparison.done))
    )


def _points(comparison: Comparison, x: str, y: str) -> list[Entry]:
    return [entry for entry in comparison.having(x) if y in entry.measures]


def _corner(y: Measure) -> str:
    if y.better == "target":
        return f"left and close to the line at {y.write_tick(y.target)} is better"
    return f"{'upper' if y.better == 'higher' else 'lower'} left is better"


def _whiskers(comparison: Comparison) -> str:
    return "Whiskers show one standard deviation over the seeds." if comparison.seeds > 1 else ""


def _scatter(comparison: Comparison, x_key: str, y_key: str) -> Markup:
    x, y = comparison.measure(x_key), comparison.measure(y_key)
    entries = _points(comparison, x_key, y_key)
    title = f"{y.title} against {x.title.lower()}"
    description = "; ".join(
        f"{e.title}: {y.write(e.measures[y_key].mean)} at {x.write(e.measures[x_key].mean)}" for e in entries
    )
    return responsive(lambda width, height: _draw(entries, x, y, width, height, title, description), 420)


def _draw(
    entries: list[Entry], x: Measure, y: Measure, width: float, height: float, title: str, description: str
) -> Markup:
    spreads = [entry.measures[y.key] for entry in entries]
    ends = [end for s in spreads for end in (s.mean - (s.std or 0), s.mean + (s.std or 0))]
    # On a logarithmic axis only the means count: a whisker may reach zero.
    xs = axis((entry.measures[x.key].mean for entry in entries), 58, width - 14, pad=0.09)
    ys = axis([*ends, y.target] if y.better == "target" else ends, height - 46, 28, log=False)
    points = [(xs(entry.measures[x.key].mean), ys(spread.mean)) for entry, spread in zip(entries, spreads)]
    whiskers = [
        Box(at - 1, ys(spread.mean + (spread.std or 0)), at + 1, ys(spread.mean - (spread.std or 0)))
        for (at, _), spread in zip(points, spreads)
    ]
    bounds = Box(60, 30, width - 4, height - 48)
    places = place_labels(points, [entry.title for entry in entries], bounds, whiskers)
    shapes = []
    for entry, point, place, box in zip(entries, points, places, whiskers):
        whisker = line(point[0], box.top, point[0], box.bottom, "whisker")
        shapes.append(
            series(entry.index, whisker, _leader(point, place), mark(*point, entry.index), _name(entry, place))
        )
    target = line(xs.start, ys(y.target), xs.stop, ys(y.target), "reference") if y.better == "target" else None
    return picture(
        width,
        height,
        title,
        description,
        frame(
            xs,
            ys,
            x_ticks=xs.ticks(6 if width > 400 else 3),
            y_ticks=y.possible(ys.ticks(6)),
            x_write=x.write_tick,
            y_write=y.write_tick,
            x_title=_axis_title(x) + (", logarithmic" if xs.log and width > 400 else ""),
            y_title=y.axis_title,
        ),
        target,
        shapes,
    )


def _axis_title(x: Measure) -> str:
    units = {"ms": "ms per example", "seconds": "seconds", "times": "plain network = 1×"}
    unit = units.get(x.style)
    return f"{x.title} ({unit})" if unit else x.title


def _leader(point: tuple[float, float], place: Place) -> Markup | None:
    return line(*point, *place.near, "leader") if place.distance > 10 else None


def _name(entry: Entry, place: Place) -> Markup:
    return label(place.x, place.box.top + FONT_PX - 1, entry.title, place.anchor, "name")
