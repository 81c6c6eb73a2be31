"""r1-size: the number of components, tiled and drawn for each example (Rank-1 BNNs, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_small as small
from leanbayes.reproduce.recipes import _steptime as steptime
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_WAYS = {"tiled": small.training, "per example": small.per_example}
_PLAIN = "plain"
_SLOWER = 1.3
_TIME = "time of a step over that of the plain network"
# Published as the best number of components.
_BEST = 8


def measure(run: Run) -> Outcome:
    """Train networks of 1 to 16 components in both ways, and compare predictions and times."""
    sizes = run.settings["sizes"]
    trainings = {
        f"K = {size}, {way}": make(run.settings, components=size) for way, make in _WAYS.items() for size in sizes
    }
    trainings[_PLAIN] = small.per_example(run.settings, family="plain")
    timed = f"K = {_BEST if _BEST in sizes else sizes[-1]}, per example"
    found = small.measured(run, trainings, timed=trainings[timed])
    slower = [one["ratio"] for one in found.pop(small.TIME)]
    rows = [*small.rows(found), Row(timed, _TIME, None, slower)]
    checks = []
    nll = {name: [r1.at(one)["nll"] for one in ones] for name, ones in found.items()}
    for way in _WAYS:
        few, many = (f"K = {size}, {way}" for size in (sizes[0], _BEST if _BEST in sizes else sizes[-1]))
        gain = [b - a for a, b in zip(nll[few], nll[many])]
        checks.append(at_most(f"NLL of {many} less that of {few}", gain, 0.0))
    checks.append(at_most(f"{timed}: {_TIME}", slower, _SLOWER))
    figure = {way: {"sizes": list(sizes), "nll": [fmean(nll[f"K = {size}, {way}"]) for size in sizes]} for way in _WAYS}
    s = run.settings
    notes = [
        small.note(run),
        f"tiled, every component sees every image of {s['epochs']} epochs, at a cost that grows with K (published: the "
        f"batch shrinks as K grows); per example, {s['components']} times the epochs in batches of as many times the "
        "images, at one cost for all K",
        steptime.note(run),
    ]
    return Outcome(rows, checks, figure, notes)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL over components."""
    axes = canvas.subplots()
    for (way, curve), colour in zip(figure.items(), ("#3b5bdb", "#d9480f")):
        axes.plot(curve["sizes"], curve["nll"], marker="o", color=colour, label=way)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("components")
    axes.set_ylabel("NLL, nats")
    axes.legend(frameon=False)


register(
    Recipe(
        id="r1-size",
        title="Number of rank-1 components, on a tiled batch and with one component for each example",
        presets={
            name: values | {"sizes": (1, 2) if name == "smoke" else (1, 2, 4, 8, 16)}
            for name, values in small.PRESETS.items()
        },
        seeds=small.SEEDS,
        measure=measure,
        draw=draw,
    )
)
