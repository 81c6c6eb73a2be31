"""kt-snr: signal-to-noise ratio of gradients early in training (k-tied Normal, figure 6, top right)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_mlp as kt
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

ID = "kt-snr"
_PUBLISHED = {
    "mean-field": (4.13, 4.45, 3.21),
    "1-tied": (5840, 158, 5.3),
    "2-tied": (7500, 140, 4.3),
    "3-tied": (7000, 117, 4.1),
}
# Of mean-field's ratio at the first step that is looked at.
_TIMES = 100
_COMMON: dict[str, Any] = {"prior_std": 0.2, "lr": 3e-4}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": _COMMON
    | {"steps": 24, "every": 6, "printed": (12, 24), "batch_size": 40, "hidden": (20, 20), "valid_samples": 2},
    "short": _COMMON
    | {"steps": 9000, "every": 250, "printed": kt.PRINTED_STEPS}
    | {"batch_size": 1024, "hidden": (400, 400), "valid_samples": 10},
}
PRESETS["paper"] = PRESETS["short"]
SEEDS = {"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)}


def measure(run: Run) -> Outcome:
    """Train from the same starts with every rank, and compare gradients of standard deviations."""
    found = run.each_seed_of(kt.course, kt.RANKS)
    steps = run.settings["printed"]
    rows = [
        Row(name, f"SNR at step {step}", published, [one["snr"][str(step)] for one in found[name]])
        for name, figures in _PUBLISHED.items()
        for step, published in zip(steps, figures)
    ]
    first = str(steps[0])
    base = fmean(one["snr"][first] for one in found["mean-field"])
    checks = [
        at_least(
            f"{name}: SNR over mean-field's at step {first}", [one["snr"][first] / base for one in found[name]], _TIMES
        )
        for name in kt.RANKS
        if name != "mean-field"
    ]
    s = run.settings
    notes = [
        f"E[g^2] / Var[g] over {kt.WINDOW} batches, both averaged over the standard deviations of the second dense "
        "layer: behind dead units, gradients have no noise, and the mean of all ratios would be theirs",
        f"batches of {s['batch_size']}, Adam at {s['lr']:g}, prior N(0, {s['prior_std']:g}^2), no annealing",
    ]
    ratios = {name: [[one["snr"][str(step)] for step in steps] for one in ones] for name, ones in found.items()}
    return Outcome(rows, checks, {"steps": list(steps), "ratios": ratios}, notes)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The ratio over the steps."""
    axes = canvas.subplots()
    for name, ones in figure["ratios"].items():
        means = [fmean(values) for values in zip(*ones)]
        axes.plot(figure["steps"], means, marker="o", color=kt.COLOURS[name], label=name)
    axes.set_yscale("log")
    axes.set_xticks(figure["steps"])
    axes.set_xlabel("step")
    axes.set_ylabel("signal-to-noise ratio")
    axes.set_title("gradients of free and tied standard deviations")
    axes.legend(frameon=False)


register(
    Recipe(
        id=ID,
        title="Signal-to-noise ratio of the gradients of standard deviations, MLP on MNIST",
        presets=PRESETS,
        seeds=SEEDS,
        measure=measure,
        draw=draw,
    )
)
