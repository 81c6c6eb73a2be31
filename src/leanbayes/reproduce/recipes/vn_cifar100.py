"""vn-cifar100: the same as vn-cifar10 on the 20 coarse classes of CIFAR-100."""

from __future__ import annotations

from typing import Any

from leanbayes.data import generate
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._vgg import draw_transition, table, vgg_scores
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

_PUBLISHED = {"vgg-dropout": (77.5, 79.8, 81.7), "vgg-log-uniform": (76.9, 5.0, 82.2)}


def measure(run: Run) -> Outcome:
    """Train the dropout and the variance network."""
    found = run.each_seed_of(_one, _PUBLISHED)
    return table(run, found, _PUBLISHED, least=81.0, chance=5.0)


def _one(run: Run, name: str, seed: int) -> dict[str, Any]:
    return vgg_scores(run, name, seed, *_images(run), key="cifar100-")


def _images(run: Run) -> tuple[vn.Arrays, vn.Arrays]:
    """CIFAR-100 with its coarse labels; generated images of the same layout where there is no copy of it."""
    options = {"valid": 0, "normalise": "none", "labels": "coarse"}
    try:
        return vn.pixels(run.load("cifar100", rows=(100, 40), **options))
    except FileNotFoundError:
        run.note("generated images in CIFAR-100's layout: no copy of CIFAR-100 was at hand, so no figure is comparable")
        return vn.pixels(generate.dataset("cifar100", rows=(10000, 2000), **options))


register(
    Recipe(
        id="vn-cifar100",
        title="VGG-like network on the 20 coarse classes of CIFAR-100",
        presets=vn.CIFAR_PRESETS,
        seeds=vn.SEEDS | {"short": (0,)},
        measure=measure,
        draw=draw_transition,
    )
)
