"""r1-diversity: disagreement of components over their error, for rank-1 and BatchEnsemble (Rank-1 BNNs, figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_small as small
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_RANK1, _BATCH = "rank-1", "BatchEnsemble"
_OF_COMPONENTS = {
    "diversity": "disagreement over error",
    "disagreement": "disagreement",
    "accuracy": "accuracy of one component",
}
_COLOURS = {_RANK1: "#3b5bdb", _BATCH: "#d9480f"}


def measure(run: Run) -> Outcome:
    """Train both and compare how their components differ, at the end and over the last epochs."""
    trainings = {name: small.training(run.settings, family=f) for name, f in ((_RANK1, "normal"), (_BATCH, "delta"))}
    found = small.measured(run, trainings, shifted=False)
    rows = small.rows(found)
    for name, ones in found.items():
        rows += Row.by_metric(name, _OF_COMPONENTS, [one["components"] for one in ones])
    more = [a["components"]["diversity"] - b["components"]["diversity"] for a, b in zip(found[_RANK1], found[_BATCH])]
    gain = [r1.at(a)["nll"] - r1.at(b)["nll"] for a, b in zip(found[_RANK1], found[_BATCH])]
    checks = [
        at_least("disagreement over error: rank-1 less BatchEnsemble", more, 0.0),
        at_most("NLL: rank-1 less BatchEnsemble", gain, 0.0),
    ]
    return Outcome(rows, checks, {name: _course(ones[0]["watched"]) for name, ones in found.items()}, [small.note(run)])


def _course(watched: list[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The last tenth of the epochs."""
    last = watched[-max(1, len(watched) // 10) :]
    return {
        "diversity": [one["components"]["diversity"] for one in last],
        "accuracy": [one["accuracy"] for one in last],
        "log-likelihood": [-one["nll"] for one in last],
    }


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Disagreement against accuracy and likelihood, one dot for each of the last epochs."""
    for axes, key in zip(canvas.subplots(1, 2, sharey=True), ("accuracy", "log-likelihood")):
        for name, course in figure.items():
            axes.scatter(course[key], course["diversity"], color=_COLOURS[name], label=name)
        axes.set_xlabel(key)
        axes.set_ylabel("disagreement over error")
        axes.legend(frameon=False)


register(
    Recipe(
        id="r1-diversity",
        title="Disagreement of components over their error: rank-1 against BatchEnsemble",
        presets=small.PRESETS,
        seeds=small.SEEDS,
        measure=measure,
        draw=draw,
    )
)
