"""vn-prune: most deviations of a variance layer can be set to zero."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.analysis import pruning_curve
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._pruning import NO_LOSS, share_without_loss
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_NETWORKS = {"zero-mean": "mnist-zero-mean", "layer-wise": "mnist-all-layers"}
_SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
_LEAST = 0.95


def measure(run: Run) -> Outcome:
    """Accuracy of 20 samples with the smallest standard deviations of dense1 removed."""
    by_network = run.each_seed_of(_one, _NETWORKS.values())
    found = {title: by_network[name] for title, name in _NETWORKS.items()}
    rows, checks = [], []
    for title, ones in found.items():
        reached = [
            share_without_loss(one["dense"], {level: point["accuracy"] for level, point in one["curve"].items()})
            for one in ones
        ]
        rows.append(Row(title, "accuracy of 20 samples before, %", None, [one["dense"] for one in ones]))
        rows.append(
            Row(title, f"sparsity at a loss of at most {NO_LOSS} points, %", 98, [100 * value for value in reached])
        )
        rows.append(
            Row(title, "accuracy at a sparsity of 98 %, %", None, [one["curve"]["0.98"]["accuracy"] for one in ones])
        )
        mean = fmean(reached)
        gap = f"{title}: {mean:.1%} on average"
        checks.append(Check(f"{title}: at least {_LEAST:.0%} of dense1 can go at no loss", mean >= _LEAST, gap))
    return Outcome(rows, checks, {title: ones for title, ones in found.items()})


def _one(run: Run, name: str, seed: int) -> dict[str, Any]:
    train, test = vn.mnist(run)
    model, _ = vn.train_lenet(run, name, seed, train)
    samples = run.settings["samples"]
    curve = pruning_curve(model, *test, sparsities=_SPARSITIES, layer="dense1", samples=samples)
    # The threshold that gives a sparsity is the deviation at that rank.
    deviations = model.get_submodule("dense1").weight.posterior.std().detach().flatten().sort().values  # pyright: ignore
    points = {
        str(point.level): {
            "accuracy": 100 * point.score.accuracy,
            "threshold": float(deviations[round(point.level * len(deviations))]),
        }
        for point in curve.points
    }
    return {"dense": 100 * curve.dense.accuracy, "curve": points}


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracy and sparsity against the threshold."""
    left, right = canvas.subplots(1, 2)
    for number, (title, ones) in enumerate(figure.items()):
        for one in ones:
            levels = [100 * float(level) for level in one["curve"]]
            points = list(one["curve"].values())
            left.plot([p["threshold"] for p in points], levels, color=f"C{number}", label=title)
            right.plot(levels, [p["accuracy"] for p in points], color=f"C{number}", label=title)
            right.axhline(one["dense"], color=f"C{number}", linewidth=0.5, linestyle=":")
    left.set(xscale="log", xlabel="threshold for the standard deviations", ylabel="sparsity of dense1, %")
    right.set(xlabel="sparsity of dense1, %", ylabel="test accuracy of 20 samples, %")
    handles, labels = right.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    right.legend(unique.values(), unique.keys(), loc="lower left")


register(
    Recipe(
        id="vn-prune",
        title="Pruning the first dense layer of variance LeNet-5 by its standard deviations",
        presets=vn.MNIST_PRESETS,
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
