"""What the recipes on VGG-like networks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

import leanbayes as lb
from leanbayes.analysis import phases
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._checks import at_least, at_most, every
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

DROPOUT_IS_DRAWN = (
    "samples of the variance network draw the dropout of its other layers, too, as those of the dropout network do: "
    "the published accuracies of one sample are alike"
)
_WATCHED = "classifier.dense1"
# Networks of which nothing but accuracies is asked: they have no transition.
_SETTLED = ("vgg-dropout", "vgg-zero-mean")


def trained_vgg(
    run: Run, name: str, seed: int, train: vn.Arrays, test: vn.Arrays, *, key: str = ""
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Train one network, and note the phases of its layers on the way where they have any."""
    watch = vn.watch_phases(test, _WATCHED, run.settings["epochs"]) if name not in _SETTLED else None
    return vn.train_vgg(run, name, seed, train, key=key, watch=watch)


def vgg_scores(run: Run, name: str, seed: int, train: vn.Arrays, test: vn.Arrays, *, key: str = "") -> dict[str, Any]:
    """Train one network and evaluate it."""
    model, records = trained_vgg(run, name, seed, train, test, key=key)
    if name in _SETTLED:
        return vn.accuracies(model, test, run.settings["samples"])
    with lb.sampling(mean=lb.named(vn.VGG_DROPOUT)):
        weights_alone = vn.accuracies(model, test, run.settings["samples"])
    report = phases(model, *test, samples=run.settings["samples"], batch_size=256).to_dict()
    together = report["together"]
    return {
        "one": 100 * report["drawn"]["sample_accuracy"],
        "averaged": 100 * report["drawn"]["accuracy"],
        "mean": 100 * together["mean"]["accuracy"],
        "zero_mean": 100 * together["zero_mean"]["accuracy"],
        "weights_alone": {key: weights_alone[key] for key in ("one", "averaged")},
        "permuted": 100 * together["permuted"]["accuracy"],
        "log_alpha": {layer["name"]: layer["log_alpha"] for layer in report["layers"]},
        "curves": vn.curves(records, together=True),
    }


def on_cifar10(run: Run, name: str, seed: int) -> dict[str, Any]:
    """Train one network on CIFAR-10 and evaluate it."""
    return vgg_scores(run, name, seed, *vn.cifar10(run))


def transition_checks(title: str, ones: list[dict[str, Any]], chance: float) -> list[Check]:
    """What must hold of a network whose layers have become variance layers."""
    alphas = [value for one in ones for value in one["log_alpha"].values()]
    losses = [one["averaged"] - one["zero_mean"] for one in ones]
    return [
        every(f"{title}: log alpha of all noisy layers", alphas, 5.0, 20.0),
        at_most(f"{title}: mean propagation", [one["mean"] for one in ones], 1.2 * chance, " %"),
        at_most(f"{title}: accuracy lost by dropping the means", losses, 0.3, " points"),
        at_most(f"{title}: accuracy with permuted deviations", [one["permuted"] for one in ones], 3 * chance, " %"),
    ]


def table(
    run: Run,
    found: dict[str, list[dict[str, Any]]],
    published: Mapping[str, tuple[float, float, float]],
    *,
    least: float,
    chance: float,
) -> Outcome:
    """The rows of table 2, its checks and the learning curve."""
    titles = {"vgg-dropout": "dropout", "vgg-log-uniform": "variance"}
    rows = [
        row
        for name, values in published.items()
        for row in Row.by_metric(titles[name], vn.METRICS, found[name], values)
    ]
    ones = found["vgg-log-uniform"]
    for layer in ones[0]["log_alpha"]:
        about = "> 12" if layer == _WATCHED else "> 15"
        rows.append(Row(f"variance, {layer}", "log alpha", about, [one["log_alpha"][layer] for one in ones]))
    for key in ("one", "averaged"):
        rows.append(Row("variance, dropout off", vn.METRICS[key], None, [one["weights_alone"][key] for one in ones]))
    rows.append(Row("variance, zero-mean", vn.METRICS["averaged"], None, [one["zero_mean"] for one in ones]))
    rows.append(Row("variance, permuted deviations", vn.METRICS["averaged"], None, [one["permuted"] for one in ones]))
    checks = [at_least("variance: 20 samples", [one["averaged"] for one in ones], least, " %")]
    checks += transition_checks("variance", ones, chance)
    notes = [
        f"accuracies during training are those of the first 2000 test images with 5 samples; {schedule(run)}",
        DROPOUT_IS_DRAWN,
    ]
    return Outcome(rows, checks, {"curves": ones[0]["curves"]}, notes)


def schedule(run: Run) -> str:
    """How the training differs from the published one, in words."""
    s = run.settings
    return (
        f"{s['epochs']} epochs of batches of {s['batch_size']} (published: 550 of 100), log alpha at {s['alpha_lr']:g}"
    )


def draw_transition(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracies over the epochs."""
    axes = canvas.subplots()
    vn.draw_curves(axes, figure["curves"], "means lose what variances gain")
    axes.legend(loc="center right", fontsize="small")
