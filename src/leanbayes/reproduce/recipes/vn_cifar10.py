"""vn-cifar10: a VGG-like network on CIFAR-10 whose last convolutions and first dense layer become variance layers."""

from __future__ import annotations

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.recipes._vgg import draw_transition, on_cifar10, table
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Accuracy of one sample, mean propagation and 20 samples.
_PUBLISHED = {"vgg-dropout": (91.0, 93.1, 93.4), "vgg-log-uniform": (91.3, 10.0, 93.4)}
_ZERO_MEAN = "vgg-zero-mean"
_PUBLISHED_ZERO_MEAN = (None, None, 92.9)


def measure(run: Run) -> Outcome:
    """Train the dropout network, the variance network and one whose first dense layer has no means from the start."""
    found = run.each_seed_of(on_cifar10, (*_PUBLISHED, _ZERO_MEAN))
    outcome = table(run, found, _PUBLISHED, least=93.0, chance=10.0)
    ones = found[_ZERO_MEAN]
    outcome.rows.extend(Row.by_metric("zero-mean", vn.METRICS, ones, _PUBLISHED_ZERO_MEAN))
    outcome.checks.append(at_least("zero-mean: 20 samples", [one["averaged"] for one in ones], 92.5, " %"))
    outcome.notes.append(
        "zero-mean: the first dense layer has no means and |x| after it (preprint, appendix D), the rest is the "
        "dropout network"
    )
    return outcome


register(
    Recipe(
        id="vn-cifar10",
        title="VGG-like network on CIFAR-10: four layers become variance layers",
        presets=vn.CIFAR_PRESETS,
        seeds=vn.SEEDS | {"short": (0,)},
        measure=measure,
        draw=draw_transition,
    )
)
