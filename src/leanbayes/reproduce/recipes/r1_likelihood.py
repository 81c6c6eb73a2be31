"""r1-likelihood: training by the log of the mixture or by the average of the logs (Rank-1 BNNs, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _r1_small as small
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_AVERAGE, _MIXTURE = "average", "log-mixture"


def measure(run: Run) -> Outcome:
    """Train by both objectives; components are averaged in predictions in any case."""
    likelihoods = {_AVERAGE: "average", _MIXTURE: "mixture"}
    trainings = {name: small.training(run.settings, likelihood=each) for name, each in likelihoods.items()}
    found = small.measured(run, trainings, shifted=False)
    rows = small.rows(found)
    for name, ones in found.items():
        rows.append(Row(name, "NLL of one component, nats", None, [one["components"]["nll"] for one in ones]))
        rows.append(Row(name, "training NLL, nats", None, [one["train_nll"] for one in ones]))
    gain = [r1.at(a)["nll"] - r1.at(b)["nll"] for a, b in zip(found[_AVERAGE], found[_MIXTURE])]
    single = [a["components"]["nll"] - b["components"]["nll"] for a, b in zip(found[_AVERAGE], found[_MIXTURE])]
    checks = [
        at_most("NLL: average less log-mixture", gain, 0.0),
        at_most("NLL of one component: average less log-mixture", single, 0.0),
    ]
    return Outcome(rows, checks, {name: ones[0]["watched"] for name, ones in found.items()}, [small.note(run)])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL over epochs: of training, of the mixture and of its components on test images."""
    for axes, (name, course) in zip(canvas.subplots(1, 2, sharey=True), figure.items()):
        epochs = [one["epoch"] for one in course]
        for each in zip(*(one["each"] for one in course)):
            axes.plot(epochs, each, color="#ffa94d", linewidth=0.7)
        axes.plot(epochs, [one["train_nll"] for one in course], color="#212529", label="training")
        axes.plot(epochs, [one["nll"] for one in course], color="#3b5bdb", label="test, mixture")
        axes.plot([], [], color="#ffa94d", label="test, components")
        axes.set_title(name)
        axes.set_xlabel("epoch")
        axes.set_ylabel("NLL, nats")
        axes.legend(frameon=False, fontsize=8)


register(
    Recipe(
        id="r1-likelihood",
        title="Rank-1 networks trained by the log of the mixture, or by the average over components",
        presets=small.PRESETS,
        seeds=small.SEEDS,
        measure=measure,
        draw=draw,
    )
)
