"""vn-noise: variance layers with Gaussian, Bernoulli and uniform noise."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.analysis import phases
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_PUBLISHED = {"gaussian": 99.3, "bernoulli": 98.7, "uniform": 98.7}
_NETWORKS = {"gaussian": "mnist-zero-mean", "bernoulli": "mnist-bernoulli", "uniform": "mnist-uniform"}


def measure(run: Run) -> Outcome:
    """Train a variance layer with each kind of noise."""
    found = run.each_seed_of(_one, _NETWORKS)
    rows = []
    for kind, ones in found.items():
        rows.append(Row(kind, "accuracy of 20 samples, %", _PUBLISHED[kind], [one["averaged"] for one in ones]))
        rows.append(Row(kind, "accuracy of one sample, %", None, [one["one"] for one in ones]))
    means = {kind: fmean(one["averaged"] for one in ones) for kind, ones in found.items()}
    best = max(means, key=lambda kind: means[kind])
    check = Check(
        "Gaussian noise, by local reparameterisation, is best",
        best == "gaussian",
        f"{best} noise reaches {means[best]:.2f} %, Gaussian {means['gaussian']:.2f} %",
    )
    notes = [
        "Bernoulli and uniform weights are drawn once for a batch in training and their signs flipped for each example "
        "(flipout); Gaussian noise is drawn for each output"
    ]
    return Outcome(rows, [check], {"found": found}, notes)


def _one(run: Run, kind: str, seed: int) -> dict[str, float]:
    train, test = vn.mnist(run)
    model, _ = vn.train_lenet(run, _NETWORKS[kind], seed, train, epochs=run.settings["epochs"])
    drawn = phases(model, *test, samples=run.settings["samples"]).drawn
    return {"averaged": 100 * drawn.accuracy, "one": 100 * drawn.sample_accuracy}


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracies of all seeds."""
    axes = canvas.subplots()
    for place, (kind, ones) in enumerate(figure["found"].items()):
        for key, marker in (("averaged", "o"), ("one", "x")):
            axes.plot([one[key] for one in ones], [place] * len(ones), marker, color=f"C{place}")
        axes.plot([_PUBLISHED[kind]], [place], "|", color="0.3", markersize=20)
    axes.set_yticks(range(len(figure["found"])), list(figure["found"]))
    axes.set(xlabel="test accuracy, %: o 20 samples, x one sample, | published", title="Noise of a variance layer")


register(
    Recipe(
        id="vn-noise",
        title="Variance layers with Gaussian, Bernoulli and uniform noise in LeNet-5 on MNIST",
        presets=vn.MNIST_PRESETS,
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
