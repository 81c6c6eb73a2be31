"""vn-cifar100: the same as vn-cifar10 on the 20 coarse classes of CIFAR-100."""

from __future__ import annotations

from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._vgg import draw_transition, table, vgg_scores
from leanbayes.reproduce.result import Outcome
from leanbayes.reproduce.run import Run

_PUBLISHED = {"vgg-dropout": (77.5, 79.8, 81.7), "vgg-log-uniform": (76.9, 5.0, 82.2)}
_NO_COPY = "generated images in CIFAR-100's layout: no copy of CIFAR-100 was at hand, so no figure is comparable"


def measure(run: Run) -> Outcome:
    """Train the dropout and the variance network; on generated images where there is no copy of CIFAR-100."""
    run.generate_without("cifar100", _NO_COPY, **_options(run))
    found = run.each_seed_of(_one, _PUBLISHED)
    return table(run, found, _PUBLISHED, least=81.0, chance=5.0)


def _one(run: Run, name: str, seed: int) -> dict[str, Any]:
    train, test = vn.pixels(run.load("cifar100", **_options(run)))
    # Networks on generated images have a place of their own, so that they are not in the way once there is a copy.
    return vgg_scores(run, name, seed, train, test, key="cifar100-generated-" if run.generated else "cifar100-")


def _options(run: Run) -> dict[str, Any]:
    rows = (100, 40) if run.preset == "smoke" else (10000, 2000)
    return {"rows": rows, "valid": 0, "normalise": "none", "labels": "coarse"}


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
