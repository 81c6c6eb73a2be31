"""vn-priors: under the log-uniform, Student's and the ARD prior alike, layers become variance layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._vgg import DROPOUT_IS_DRAWN, on_cifar10, schedule, transition_checks
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_PRIORS = {"log-uniform": "vgg-log-uniform", "Student-t": "vgg-student", "ARD": "vgg-ard"}


def measure(run: Run) -> Outcome:
    """Train the VGG-like network under each prior."""
    found = run.each_seed_of(on_cifar10, _PRIORS.values())
    rows, checks, figure = [], [], {}
    for prior, name in _PRIORS.items():
        ones = found[name]
        rows.append(Row(prior, "accuracy of 20 samples, %", None, [one["averaged"] for one in ones]))
        rows.append(Row(prior, "accuracy of mean propagation, %", None, [one["mean"] for one in ones]))
        rows.append(Row(prior, "smallest log alpha", None, [min(one["log_alpha"].values()) for one in ones]))
        checks += transition_checks(prior, ones, 10.0)
        figure[prior] = ones[0]["curves"]
    return Outcome(rows, checks, figure, [schedule(run), DROPOUT_IS_DRAWN])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """One panel per prior."""
    panels = canvas.subplots(1, len(figure), sharey=True)
    for axes, (prior, curve) in zip(panels, figure.items()):
        alpha = vn.draw_curves(axes, curve, prior)
        axes.label_outer()
        if axes is not panels[-1]:
            alpha.set_ylabel("")
    panels[0].legend(loc="center right", fontsize="x-small")


register(
    Recipe(
        id="vn-priors",
        title="Transition to variance layers under three priors, VGG-like network on CIFAR-10",
        presets=vn.CIFAR_PRESETS | {"short": vn.CIFAR_PRESETS["short"] | {"epochs": 160}},
        seeds=vn.SEEDS | {"short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
