"""kt-convergence: negative ELBO against training steps (k-tied Normal, figure 6, bottom right, and figure 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_mlp as kt
from leanbayes.reproduce.recipes import kt_snr
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_PUBLISHED = {
    "mean-field": (42.16, 26.52, 15.39),
    "1-tied": (43.11, 14.85, 2.06),
    "2-tied": (42.74, 13.97, 1.82),
    "3-tied": (42.63, 13.61, 1.80),
}


def measure(run: Run) -> Outcome:
    """The trainings of `kt-snr`, by their validation ELBO."""
    found = run.as_recipe(kt_snr.ID).each_seed_of(kt.course, kt.RANKS)
    steps = run.settings["printed"]
    rows = [
        Row(name, f"negative ELBO at step {step}, nats", published, [_at(one, step) for one in found[name]])
        for name, figures in _PUBLISHED.items()
        for step, published in zip(steps, figures)
    ]
    last = steps[-1]
    goal = fmean(_at(one, last) for one in found["mean-field"])
    checks = []
    for name in list(kt.RANKS)[1:]:
        needed = [_steps_to(one, goal) for one in found[name]]
        rows.append(Row(name, f"steps to mean-field's ELBO of step {last}", None, needed))
        share = [count / last for count in needed]
        checks.append(at_most(f"{name}: steps to mean-field's ELBO of step {last}, of mean-field's", share, 0.999))
    curves = {
        name: {"steps": ones[0]["steps"], "elbo": [fmean(values) for values in zip(*(one["elbo"] for one in ones))]}
        for name, ones in found.items()
    }
    notes = [
        "validation ELBO per example, without annealing; the KL is divided by the number of training images",
        f"measured every {run.settings['every']} steps; steps in between are interpolated",
    ]
    return Outcome(rows, checks, {"curves": curves, "goal": goal}, notes)


def _at(one: Mapping[str, Sequence[float]], step: int) -> float:
    return one["elbo"][list(one["steps"]).index(step)]


def _steps_to(one: Mapping[str, Sequence[float]], goal: float) -> float:
    """The step at which the negative ELBO falls to a value, the last one where it does not."""
    points = list(zip(one["steps"], one["elbo"]))
    before = points[0]
    for after in points:
        if after[1] <= goal:
            if after is points[0] or before[1] == after[1]:
                return float(after[0])
            return before[0] + (after[0] - before[0]) * (before[1] - goal) / (before[1] - after[1])
        before = after
    return float(points[-1][0])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The course of the ELBO."""
    axes = canvas.subplots()
    axes.axhline(figure["goal"], color="#ced4da", linewidth=1, zorder=0)
    for name, curve in figure["curves"].items():
        axes.plot(curve["steps"], curve["elbo"], color=kt.COLOURS[name], label=name)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("negative ELBO on held-out images, nats")
    axes.set_title("free and tied standard deviations: how fast they converge")
    axes.legend(frameon=False)


register(
    Recipe(
        id="kt-convergence",
        title="Negative ELBO against training steps, MLP on MNIST",
        presets=kt_snr.PRESETS,
        seeds=kt_snr.SEEDS,
        measure=measure,
        draw=draw,
    )
)
