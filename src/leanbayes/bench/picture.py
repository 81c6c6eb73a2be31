"""A picture of a result: what every method costs, and how costs grow."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.bench.bounds import SAMPLES
from leanbayes.bench.result import DONE, PLAIN
from leanbayes.training.files import write_bytes

_PEERS = "another library"
_COLOURS = {"eager": "#9aa5b1", "captured": "#2563a8", _PEERS: "#c2571a"}
_PLAIN = "#5b6773"
_TITLES = {"step": "training step", "predict": f"{SAMPLES}-sample prediction", "memory": "peak memory of a step"}
_AXES = {"samples": "samples S", "components": "components K", "rank": "rank", "width": "width", "batch": "batch"}
# Factor and unit of what curves show.
_UNITS = {"seconds": (1e3, "ms"), "bytes": (1e-6, "MB")}
# Below this ratio of its ends a logarithmic axis has hardly a 1, 2 or 5.
_SHORT = 5
_DPI = 150
_WIDE = 3.4


def draw(result: Mapping[str, Any], path: Path) -> bool:
    """Draw a result where matplotlib is installed; says whether it was drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    costs = [part for part in _TITLES if _bars(result, part)]
    curves = [axis for axis in _AXES if _points(result, axis)]
    if not costs and not curves:
        return False
    rows = max((len(_names(result, part)) for part in costs), default=0)
    heights = [0.22 * rows + 1.4] * bool(costs) + [2.8] * bool(curves) + [2.8] * bool(_memory(result, curves))
    width = _WIDE * max(len(costs), len(curves), 2)
    canvas = Figure(figsize=(width, sum(heights)), dpi=_DPI, layout="constrained")
    grid = canvas.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if costs:
        for axes, part in zip(grid[0].subplots(1, len(costs), squeeze=False)[0], costs):
            _draw_costs(axes, result, part)
        _explain(grid[0], [row for part in costs for row in _bars(result, part)])
        grid[0].suptitle(f"{result['title']}, {result['device']}", fontsize=9)
    for figure, what in zip(grid[bool(costs) :], _UNITS):
        shown = curves if what == "seconds" else _memory(result, curves)
        for number, (axes, axis) in enumerate(zip(figure.subplots(1, len(shown), squeeze=False)[0], shown)):
            _draw_curves(axes, result, axis, what, legend=number == 0)
    buffer = io.BytesIO()
    # Without the version of matplotlib the same data give the same bytes for longer.
    canvas.savefig(buffer, format="png", metadata={"Software": None})
    write_bytes(path, buffer.getvalue())
    return True


def _bars(result: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """Rows of one chart, peers included."""
    wanted = {"predict": SAMPLES}.get(part)
    return [
        row
        for row in result["rows"]
        if row["status"] == DONE and row["part"] == part and row.get("samples") == wanted and row["contender"] != PLAIN
    ]


def _names(result: Mapping[str, Any], part: str) -> list[str]:
    return list(dict.fromkeys(row["contender"] for row in _bars(result, part)))


def _points(result: Mapping[str, Any], axis: str) -> list[Mapping[str, Any]]:
    rows = result["rows"]
    return [row for row in rows if row["part"] == "scaling" and row["status"] == DONE and row["axis"] == axis]


def _memory(result: Mapping[str, Any], axes: list[str]) -> list[str]:
    return [axis for axis in axes if any("bytes" in row for row in _points(result, axis))]


def _way(row: Mapping[str, Any]) -> str:
    """How it ran; a peer runs in one way only, whichever way ours runs beside it."""
    return _PEERS if "package" in row else row["mode"]


def _draw_costs(axes: Any, result: Mapping[str, Any], part: str) -> None:
    """Ratios to the plain network, one line per contender; a tick of the same colour where a bound is stated."""
    names = _names(result, part)
    rows = {(row["contender"], _way(row)): row for row in _bars(result, part)}
    for (name, way), row in rows.items():
        place, colour = names.index(name), _COLOURS[way]
        axes.plot(row["ratio"], place, "o", color=colour, ms=4)
        if "at_most" in row:
            axes.plot([row["at_most"]] * 2, [place - 0.35, place + 0.35], color=colour, lw=1)
    axes.axvline(1.0, color=_PLAIN, lw=0.8, ls=":")
    axes.set(xscale="log", yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel("times the plain network", fontsize=8)
    _plain_numbers(axes.xaxis)
    axes.set_yticklabels(names, fontsize=7)
    axes.set_title(_TITLES[part], loc="left", fontsize=8)


def _explain(figure: Any, rows: list[Mapping[str, Any]]) -> None:
    """What the colours mean of those that are there, below all charts."""
    from matplotlib.lines import Line2D

    ways = [way for way in _COLOURS if way in map(_way, rows)]
    entries = [Line2D([], [], color=_COLOURS[way], marker="o", ls="", ms=4, label=way) for way in ways]
    if any("at_most" in row for row in rows):
        entries.append(Line2D([], [], color=_PLAIN, marker="|", ls="", ms=8, label="at most"))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries), fontsize=7, frameon=False)


def _draw_curves(axes: Any, result: Mapping[str, Any], axis: str, what: str, legend: bool) -> None:
    """Time or memory, one line per contender, and a dotted one for the plain network of the same size."""
    rows = [row for row in _points(result, axis) if what in row]
    scale, unit = _UNITS[what]
    names = list(dict.fromkeys(row["contender"] for row in result["rows"] if row["part"] == "scaling"))
    for name in names:
        mine = sorted((row for row in rows if row["contender"] == name), key=lambda row: row["value"])
        values, heights = [row["value"] for row in mine], [scale * row[what] for row in mine]
        # The colour says whose line it is in all charts, also in those that lack others.
        axes.plot(values, heights, "o-", ms=3, lw=1.2, label=name, color=f"C{names.index(name)}")
    plain = sorted({row["value"]: scale * row[f"plain_{what}"] for row in rows}.items())
    axes.plot(*zip(*plain), color=_PLAIN, lw=1, ls=":", label="plain")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([value for value, _ in plain], [str(value) for value, _ in plain], fontsize=7)
    axes.xaxis.minorticks_off()
    _plain_numbers(axes.yaxis)
    axes.set_xlabel(_AXES[axis], fontsize=8)
    axes.set_ylabel(f"{'prediction' if axis == 'samples' else 'step'}, {unit}", fontsize=8)
    if legend:
        axes.legend(fontsize=7, frameon=False)


def _plain_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, or at even steps where it is short, written as plain numbers."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(
        MaxNLocator(5, steps=[1, 2, 5, 10]) if high < _SHORT * low else LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(labelsize=7)
