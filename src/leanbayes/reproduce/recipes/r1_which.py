"""r1-which: distributions on the factors of inputs, of outputs, or of both (Rank-1 BNNs, figure 2, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_small as small
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

_BOTH = "on both"
_KINDS = {
    "on inputs": {"on": "input"},
    "on outputs": {"on": "output"},
    _BOTH: {"on": "both"},
    # Section 3: real against positive factors, and added against multiplied ones.
    "Cauchy": {"family": "cauchy"},
    "log-normal": {"family": "lognormal", "init_spread": 0.5},  # without signs nothing else tells components apart
    "half-Cauchy": {"family": "halfcauchy", "init_spread": 0.5},
    "additive": {"form": "additive"},
}
# The median of a half-Cauchy is its spread: its factors are noisy from the first step on.
_FRAGILE = ("log-normal", "half-Cauchy")


def measure(run: Run) -> Outcome:
    """Train a network of each kind, and compare predictions of clean and corrupted images."""
    trainings = {name: small.training(run.settings, **changes) for name, changes in _KINDS.items()}
    found = small.measured(run, trainings, fragile=_FRAGILE)
    checks = []
    for other in ("on inputs", "on outputs"):
        for key in ("nll", "ece"):
            pairs = zip(found[_BOTH], found[other])
            gain = [
                r1.over_corruptions(a[small.CORRUPTED], key)[0] - r1.over_corruptions(b[small.CORRUPTED], key)[0]
                for a, b in pairs
            ]
            text = f"corrupted images, {r1.METRICS[key].split(',')[0]}: factors on both less those {other}"
            checks.append(at_most(text, gain, 0.0))
    for real, positive in ((_BOTH, "log-normal"), ("Cauchy", "half-Cauchy")):
        if positive not in found:
            continue
        gain = [r1.at(a)["nll"] - r1.at(b)["nll"] for a, b in zip(found[real], found[positive])]
        name = "Gaussian" if real == _BOTH else real
        checks.append(at_most(f"NLL: {name} factors less {positive} ones, which are positive", gain, 0.0))
    figure = {
        name: {
            "clean": fmean(r1.at(one)["nll"] for one in ones),
            "corrupted": fmean(r1.over_corruptions(one[small.CORRUPTED], "nll")[0] for one in ones),
        }
        for name, ones in found.items()
    }
    return Outcome(small.rows(found), checks, figure, [small.note(run)])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL of clean and corrupted images."""
    names = list(figure)
    for axes, key in zip(canvas.subplots(1, 2, sharey=True), ("clean", "corrupted")):
        axes.barh(range(len(names)), [figure[name][key] for name in names], color="#3b5bdb")
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(f"NLL of {key} images, nats")
        axes.invert_yaxis()


register(
    Recipe(
        id="r1-which",
        title="Rank-1 factors with distributions on inputs, outputs or both; real, positive and added ones",
        presets=small.PRESETS,
        seeds=small.SEEDS,
        measure=measure,
        draw=draw,
    )
)
