"""vn-kappa: the curvature criterion tells which weights can be replaced by their means, and sees the transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from leanbayes.analysis import PruningCurve, curvature, phases, pruning_curve
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.recipes._pruning import share_without_loss
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run
from leanbayes.training import EpochEnd

_LAYER = "dense1"
# Published: weights above it need their noise.
_LOG10_KAPPA = 1.5
_SPARSITIES = (0.5, 0.8, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
# Of log10 kappa: the first edge, the last, and the number of bins.
_HISTOGRAM = (-8.0, 4.0, 60)


def measure(run: Run) -> Outcome:
    """Train a softplus LeNet-5 whose first dense layer transits, and follow kappa of its weights."""
    ones = run.each_seed(_one)
    removed = [100 * share_without_loss(one["dense"], one["pruned"]) for one in ones]
    replaced = [100 * share_without_loss(one["dense"], one["means_kept"]) for one in ones]
    rows = [
        Row("weights above log10 kappa = 1.5, at first", "share, %", None, [100 * one["above"][0] for one in ones]),
        Row("weights above log10 kappa = 1.5, at the end", "share, %", None, [100 * one["above"][-1] for one in ones]),
        Row("mean propagation at the end", "accuracy, %", None, [one["mean"][-1] for one in ones]),
        Row("20 samples at the end", "accuracy, %", None, [one["dense"] for one in ones]),
        Row("weights removed by kappa at no loss", "share, %", 98, removed),
        Row("weights replaced by their means at no loss", "share, %", None, replaced),
    ]
    correlations = [_rank_correlation(one["above"], one["mean"]) for one in ones]
    rows.append(
        Row("weights above against mean propagation, over the training", "rank correlation", None, correlations)
    )
    worst = max(correlations)
    checks = [
        Check(
            "weights above the threshold rise as mean accuracy falls", worst < 0, f"the rank correlation is {worst:.2f}"
        ),
        at_least("weights removed by kappa at no loss", removed, 95, " %"),
    ]
    images = len(vn.mnist(run)[0][1])
    watched, pruned = (min(run.settings[name], images) for name in ("watch_rows", "prune_rows"))
    notes = [
        f"kappa from {watched} training images during training and from {pruned} in the end, scaled to all {images}; "
        "softplus in place of ReLU"
    ]
    return Outcome(rows, checks, {"runs": ones}, notes)


def _one(run: Run, seed: int) -> dict[str, Any]:
    train, test = vn.mnist(run)
    watch = _watch(run, train, test)
    model, records = vn.train_lenet(run, "mnist-softplus", seed, train, watch=watch)
    noted = [(record["epoch"], record["kappa"]) for record in records if "kappa" in record]
    kappa = _kappa(model, train, run.settings["prune_rows"])
    options = {"sparsities": _SPARSITIES, "by": "kappa", "layer": _LAYER, "kappa": kappa}
    pruned, means_kept = (
        pruning_curve(model, *test, keep_means=keep, samples=run.settings["samples"], **options)
        for keep in (False, True)
    )
    return {
        "epoch": [epoch for epoch, _ in noted],
        "above": [note["above"] for _, note in noted],
        "mean": [note["mean"] for _, note in noted],
        "log_alpha": [note["log_alpha"] for _, note in noted],
        "histograms": [note["histogram"] for _, note in noted],
        "dense": 100 * pruned.dense.accuracy,
        "pruned": _accuracies(pruned),
        "means_kept": _accuracies(means_kept),
    }


def _watch(run: Run, train: vn.Arrays, test: vn.Arrays) -> Callable[[EpochEnd], None]:
    every = max(1, run.settings["epochs"] // 10)

    def watch(event: EpochEnd) -> None:
        if event.record["epoch"] % every == 0:
            kappa = _kappa(event.model, train, run.settings["watch_rows"])[_LAYER]
            report = phases(event.model, test[0][:2000], test[1][:2000], samples=2, layers=[_LAYER])
            event.record["kappa"] = {
                "above": float((kappa.log10() > _LOG10_KAPPA).float().mean()),
                "mean": 100 * report.together.mean.accuracy,
                "log_alpha": report.layers[0].log_alpha,
                "histogram": _histogram(kappa),
            }

    return watch


def _kappa(model: nn.Module, train: vn.Arrays, count: int) -> dict[str, torch.Tensor]:
    """Kappa of the summed loss of all training images, estimated from some of them."""
    count = min(count, len(train[1]))
    part = curvature(model, train[0][:count], train[1][:count], layer=_LAYER)
    return {name: value * (len(train[1]) / count) for name, value in part.items()}


def _histogram(kappa: torch.Tensor) -> list[float]:
    """Weights by log10 kappa; those that are smaller count in the first bin, those that are larger in the last."""
    low, high, bins = _HISTOGRAM
    return torch.histc(kappa.log10().clamp(low, high).cpu(), bins, low, high).tolist()


def _accuracies(curve: PruningCurve) -> dict[str, float]:
    return {str(point.level): 100 * point.score.accuracy for point in curve.points}


def _rank_correlation(a: list[float], b: list[float]) -> float:
    if len(a) < 2:
        return 0.0
    ranks = torch.stack([torch.tensor(values, dtype=torch.float64).argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The transition as mean accuracy and as curvature; kappa before, in and after it; weights without their noise."""
    left, middle, right = canvas.subplots(1, 3)
    other = left.twinx()
    for one in figure["runs"]:
        left.plot(one["epoch"], one["mean"], color="C0")
        other.plot(one["epoch"], [100 * value for value in one["above"]], color="C3")
        for key, style in (("pruned", "o-"), ("means_kept", "x--")):
            right.plot([100 * float(level) for level in one[key]], list(one[key].values()), style, color="C0")
    first = figure["runs"][0]
    for number in _before_within_after(first["mean"]):
        middle.stairs(first["histograms"][number], torch.linspace(*_HISTOGRAM[:2], _HISTOGRAM[2] + 1).tolist())
    left.set(xlabel="epoch", title="during training")
    left.set_ylabel("accuracy of mean propagation, %", color="C0")
    other.set_ylabel("weights above the threshold, %", color="C3")
    middle.legend([f"epoch {first['epoch'][number]}" for number in _before_within_after(first["mean"])])
    middle.axvline(_LOG10_KAPPA, color="0.4", linestyle=":")
    middle.set(xlabel="log10 kappa", yscale="log", title="weights of dense1")
    right.legend(right.get_lines()[:2], ["zero", "their means"], title="small kappa\nreplaced by", loc="center left")
    right.set(xlabel="weights replaced, %", ylabel="accuracy of 20 samples, %", title="in the end")


def _before_within_after(accuracies: list[float]) -> list[int]:
    """The first record, the first in which the means predict less than half as well, and the last."""
    within = next((number for number, value in enumerate(accuracies) if value < accuracies[0] / 2), 0)
    return sorted({0, within, len(accuracies) - 1})


# With a softplus the transition takes longer, so that this network gets the published number of epochs in any case.
_KAPPA: dict[str, dict[str, Any]] = {
    "smoke": {"watch_rows": 20, "prune_rows": 40},
    "short": {"watch_rows": 2000, "prune_rows": 20000, "epochs": 200, "alpha_lr": 2e-2},
    "paper": {"watch_rows": 60000, "prune_rows": 60000},
}
register(
    Recipe(
        id="vn-kappa",
        title="The curvature criterion during the transition of a softplus LeNet-5 on MNIST",
        presets={name: values | _KAPPA[name] for name, values in vn.MNIST_PRESETS.items()},
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
