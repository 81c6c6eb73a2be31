"""vn-cifar10: a VGG-like network on CIFAR-10 whose last convolutions and first dense layer become variance layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._vgg import draw_transition, table, vgg_scores
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

# Accuracy of one sample, mean propagation and 20 samples.
_PUBLISHED = {"vgg-dropout": (91.0, 93.1, 93.4), "vgg-log-uniform": (91.3, 10.0, 93.4)}


def measure(run: Run) -> Outcome:
    """Train the dropout and the variance network."""
    train, test = vn.cifar10(run)
    found = {
        name: [
            run.unit(f"{name}-seed{seed}", lambda n=name, s=seed: vgg_scores(run, n, s, train, test))
            for seed in run.seeds
        ]
        for name in _PUBLISHED
    }
    return table(run, found, _PUBLISHED, least=93.0, chance=10.0)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The transition during training (fig. 3)."""
    draw_transition(figure, canvas)


register(
    Recipe(
        id="vn-cifar10",
        title="VGG-like network on CIFAR-10: four layers become variance layers",
        presets=vn.CIFAR_PRESETS,
        seeds=vn.SEEDS | {"short": (0,)},
        measure=measure,
        draw=draw,
    )
)
