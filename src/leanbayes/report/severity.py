"""Metrics as the test data get worse."""

from __future__ import annotations

from leanbayes.report.blocks import figure, highlight, switch
from leanbayes.report.content import Comparison, Entry, Spread
from leanbayes.report.markup import Markup, tag
from leanbayes.report.measures import Measure
from leanbayes.report.placement import spread_out
from leanbayes.report.svg import axis, dash, frame, label, line, mark, path, picture, responsive, series, text_width

_LABEL_GAP_PX = 15
_PREFERRED = ("accuracy", "nll", "ece", "brier", "rmse", "lpd", "coverage")

Curves = list[tuple[Entry, dict[int, Spread]]]


def metric_against_severity(comparison: Comparison) -> Markup | None:
    """One line per method, one panel per metric; severity 0 is the clean test set."""
    keys = dict.fromkeys(key for e in comparison.done for metrics in e.corrupted.values() for key in metrics)
    ordered = [key for key in _PREFERRED if key in keys] + [key for key in keys if key not in _PREFERRED]
    options = []
    for key in ordered:
        curves = _curves(comparison, key)
        if curves:
            measure = comparison.measure(key)
            options.append((key, measure.title, tag("div", _lines(curves, measure), _table(curves, measure))))
    if not options:
        return None
    count = comparison.evidence.examples.get("corrupted")
    on = f", on {count:,} examples at each severity" if count else ""
    over = "the kinds of corruption" + (" and the seeds" if comparison.seeds > 1 else "")
    return figure(
        "severity",
        f"Each metric on the clean test data and as the inputs get worse, averaged over {over}{on}. The notes on the "
        "data say what was done to the inputs. A method you can trust degrades slowly and does not become "
        "over-confident.",
        switch("severity-metric", "Metric", options, highlight(comparison.done)),
    )


def _curves(comparison: Comparison, key: str) -> Curves:
    found: Curves = []
    for entry in comparison.done:
        clean = {0: entry.measures[key]} if key in entry.measures else {}
        corrupted = {severity: metrics[key] for severity, metrics in entry.corrupted.items() if key in metrics}
        if corrupted:
            found.append((entry, clean | corrupted))
    return found


def _lines(curves: Curves, measure: Measure) -> Markup:
    title = f"{measure.title} against corruption severity"
    description = "; ".join(
        f"{entry.title}: from {measure.write(values[min(values)].mean)} to {measure.write(values[max(values)].mean)}"
        for entry, values in curves
    )
    return responsive(lambda width, height: _draw(curves, measure, width, height, title, description), 400)


def _draw(curves: Curves, measure: Measure, width: float, height: float, title: str, description: str) -> Markup:
    names = max(text_width(entry.title) for entry, _ in curves)
    severities = sorted({severity for _, values in curves for severity in values})
    x = axis(severities, 58, width - names - 30, log=False, pad=0.03)
    y = axis(
        (spread.mean for _, values in curves for spread in values.values()),
        height - 46,
        28,
        log=False,
        zero=measure.better == "lower",
    )
    ends = [y(values[max(values)].mean) for _, values in curves]
    label_ys = spread_out(ends, _LABEL_GAP_PX, y.stop, y.start)
    shapes = []
    for (entry, values), end, at in zip(curves, ends, label_ys):
        points = [(x(severity), y(spread.mean)) for severity, spread in sorted(values.items())]
        shapes.append(
            series(
                entry.index,
                path(points, "line", dash(entry.index)),
                [mark(*point, entry.index, 3.5) for point in points],
                line(points[-1][0] + 5, end, x.stop + 20, at, "leader"),
                label(x.stop + 23, at + 4, entry.title, "start", "name"),
            )
        )
    return picture(
        width,
        height,
        title,
        description,
        frame(
            x,
            y,
            x_ticks=severities,
            y_ticks=measure.possible(y.ticks(6)),
            x_write=lambda value: "clean" if value == 0 else f"{value:g}",
            y_write=measure.write_tick,
            x_title="Corruption severity",
            y_title=measure.axis_title,
        ),
        shapes,
    )


def _table(curves: Curves, measure: Measure) -> Markup:
    severities = sorted({severity for _, values in curves for severity in values})
    heads = [tag("th", "clean" if s == 0 else str(s), scope="col", class_="number") for s in severities]
    rows = [
        tag(
            "tr",
            tag("th", entry.title, scope="row"),
            [tag("td", measure.write(values[s].mean) if s in values else "–", class_="number") for s in severities],
        )
        for entry, values in curves
    ]
    caption = f"{measure.title} by corruption severity"
    table = tag(
        "table",
        tag("caption", caption, class_="sr"),
        tag("thead", tag("tr", tag("th", "Method", scope="col"), heads)),
        tag("tbody", rows),
    )
    scroll = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("details", tag("summary", f"The numbers: {measure.title}"), scroll)
