"""Tables for the terminal."""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

_WIDE = 120
# What a narrow terminal has no room for, the first to go in front.
_SHIFTED, _TIME = "shifted", "ms/example"
_FIRST_TO_GO = ((), (_SHIFTED, _TIME), ("brier", "width", _SHIFTED, _TIME))
_WRITTEN = {
    "accuracy": ("accuracy", "{:.2%}", max),
    "nll": ("NLL", "{:.4f}", min),
    "ece": ("ECE", "{:.4f}", min),
    "brier": ("Brier", "{:.4f}", min),
    "rmse": ("RMSE", "", min),
    "lpd": ("LPD", "", max),
    "coverage": ("coverage", "{:.2%}", None),
    "width": ("width", "", None),
}


def console(as_json: bool = False) -> Console:
    """Where people read; the standard output belongs to the program that asked for JSON."""
    from rich.console import Console

    stream = sys.stderr if as_json else sys.stdout
    # A file or a pipe has no width of its own, and gets lines that are long enough for every table.
    return Console(file=stream, width=None if stream.isatty() else _WIDE)


def print_json(value: Any) -> None:
    """Write JSON on the standard output."""
    json.dump(value, sys.stdout, indent=1)
    print()


def comparison_table(result: dict[str, Any], width: int = _WIDE) -> Table:
    """Methods in rows; the best value of each metric is bold.

    Args:
        result: The content of compare.json.
        width: Of the terminal; a narrow one gets fewer columns.

    Returns:
        The table.
    """
    from rich.console import Console

    tables = (_table(result, set(left_out)) for left_out in _FIRST_TO_GO)
    endless = Console(width=10 * _WIDE)
    table = next(tables)
    for smaller in tables:
        if endless.measure(table).maximum <= width:
            break
        table = smaller
    return table


def _table(result: dict[str, Any], left_out: set[str]) -> Table:
    """The table without some columns."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    seeds = len(result["seeds"])
    over = ", one seed" if seeds == 1 else f", mean of {seeds} seeds"
    tested = f"{counted(result['examples']['test'], 'test example')}, " if "examples" in result else ""
    metrics = [name for name in result["metrics"] if name not in left_out]
    shifted = result["metrics"][1]
    table = Table(
        title=escape(f"{result['data']}: {tested}{result['samples']} samples per prediction{over}"),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    titles = {_SHIFTED: f"shifted {_WRITTEN[shifted][0]}", _TIME: _TIME}
    extra = [title for name, title in titles.items() if name not in left_out]
    for title in (*(_WRITTEN[name][0] for name in metrics), "OOD AUROC", "params", "train s", *extra):
        table.add_column(title, justify="right", no_wrap=True)
    best = {name: _best(result, name) for name in metrics}
    blind = _blind(result)
    failed = []
    for entry in result["methods"]:
        if entry["status"] == "done":
            table.add_row(*_row(entry, metrics, best, blind), *(_extra(entry, shifted) if extra else ()))
        else:
            table.add_row(entry["title"], "failed")
            failed.append(f"{entry['title']}: {entry['error']}")
    if blind:
        failed.append("* not clearly better than chance (50%) at telling unfamiliar inputs from test data")
    if failed:
        table.caption = escape("\n".join(failed))
    return table


def verdict(result: dict[str, Any]) -> str:
    """What the figures say about the choice of a method; empty where they say nothing."""
    from leanbayes.report.content import parse
    from leanbayes.report.summary import summarise

    findings = summarise(parse(result))
    return "\n".join([findings[0].answer, *(f"- {remark}" for remark in findings[0].more)]) if findings else ""


def answer(result: dict[str, Any]) -> dict[str, Any]:
    """The recommended method, None where the figures support none yet, and the verdict."""
    from leanbayes.report.choice import learned_nothing, recommended, too_few
    from leanbayes.report.content import parse

    comparison = parse(result)
    entry = None if learned_nothing(comparison) or too_few(comparison) else recommended(comparison)
    return {"recommended": None if entry is None else entry.name, "verdict": verdict(result)}


def counted(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "example"), counted(1200, "row")
        ('1 example', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def metric_table(title: str, metrics: dict[str, float]) -> Group:
    """One line per metric below a title, which may be wider than the table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("metric", "value")
    for name, value in metrics.items():
        label = _WRITTEN[name][0] if name in _WRITTEN else name
        table.add_row(label, _written(name, value))
    return Group(Text(title), table)


def _written(name: str, value: float) -> str:
    from leanbayes.report.measures import four_digits

    form = _WRITTEN[name][1] if name in _WRITTEN else ""
    return form.format(value) if form else four_digits(value)


def _best(result: dict[str, Any], name: str) -> float | None:
    better = _WRITTEN[name][2]
    values = [_mean(entry["metrics"].get(name)) for entry in result["methods"]]
    known = [value for value in values if value is not None]
    return better(known) if better is not None and known else None


def _row(entry: dict[str, Any], metrics: list[str], best: dict[str, float | None], blind: set[str]) -> list[str]:
    cells = [entry["title"]]
    for name in metrics:
        value = _mean(entry["metrics"][name])
        text = "-" if value is None else _written(name, value)
        cells.append(f"[bold]{text}[/bold]" if value is not None and value == best[name] else text)
    auroc = _mean(entry.get("ood", {}).get("auroc"))
    cells.append("-" if auroc is None else f"{auroc:.2%}{'*' if entry['name'] in blind else ''}")
    return [*cells, f"{entry['overhead']:.2f}x", f"{_mean(entry['train_seconds']) or 0:.1f}"]


def _blind(result: dict[str, Any]) -> set[str]:
    """Names of the methods that do not recognise unfamiliar inputs."""
    from leanbayes.report.content import parse

    comparison = parse(result)
    return {entry.name for entry in comparison.done if comparison.chance(entry, "auroc")}


def _extra(entry: dict[str, Any], shifted: str) -> list[str]:
    """The mean over severities, and the time of a prediction."""
    severe = [_mean(values[shifted]) for values in entry["corrupted"].values()]
    known = [value for value in severe if value is not None]
    text = _written(shifted, statistics.fmean(known)) if known else "-"
    return [text, f"{_mean(entry['predict_ms_per_example']) or 0:.3f}"]


def _mean(values: list[float | None] | None) -> float | None:
    known = [value for value in values or () if value is not None]
    return statistics.fmean(known) if known else None
