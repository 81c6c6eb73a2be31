"""kt-spectrum: singular values of trained standard deviations and means (k-tied Normal, figures 3, 5 and 12)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.recipes import _kt_posthoc as posthoc
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

# Percentage of the variance of standard deviations that rank 2 must explain in every layer.
_LEAST = 95.0
NOTE = (
    "variance is the sum of squares, as in the paper, of which the mean alone explains most where all are positive; "
    "the variance around the mean is what is left without it"
)
_KINDS = {"std": ("standard deviations", "#0b7285"), "mean": ("means", "#adb5bd")}


def measure(run: Run) -> Outcome:
    """Decompose the standard deviations and means of the networks of `kt-posthoc`."""
    models = [model for model in kt.MODELS if model in run.settings["models"]]
    seed = run.seeds[0]
    done = run.units(posthoc.spectra, {f"{model}-seed{seed}": (model, seed) for model in models})
    found = {model: done[f"{model}-seed{seed}"] for model in models}
    rows, checks = [], posthoc.all_there(run, kt.MODELS)
    for model, layers in found.items():
        title = kt.MODELS[model].title
        for name, layer in layers.items():
            rows += rows_of(f"{title}, {name}", layer)
        checks += low_rank(title, layers)
    figure = {kt.MODELS[model].title: layers for model, layers in found.items()}
    notes = [f"the networks of kt-posthoc, seed {seed}; a kernel is a matrix of outputs by everything else", NOTE]
    return Outcome(rows, checks, {"layers": figure}, notes)


def rows_of(title: str, layer: Mapping[str, Any]) -> list[Row]:
    """What ranks 1 and 2 explain of one kernel."""
    rows = [
        Row(title, f"variance of {text} at rank {rank}, %", None, [posthoc.explained(layer, kind, rank)])
        for kind, (text, _) in _KINDS.items()
        for rank in (1, 2)
    ]
    around = "variance of standard deviations around their mean at rank {}, %"
    return rows + [Row(title, around.format(rank), None, [100 * layer["spread"][rank - 1]]) for rank in (1, 2)]


def low_rank(title: str, layers: Mapping[str, Any]) -> list[Check]:
    """Checks that rank 2 explains nearly all of the standard deviations, and more of their spread than of the means.

    The first holds for any positive numbers of about one size, the second does not hold before training. A matrix with
    two rows or columns has no more singular values, and nothing to show.
    """
    wide = {name: layer for name, layer in layers.items() if min(layer["shape"]) > 2}
    least = min(posthoc.explained(layer, "std", 2) for layer in wide.values())
    shares = {name: (100 * layer["spread"][1], posthoc.explained(layer, "mean", 2)) for name, layer in wide.items()}
    wrong = [f"{name} ({std:.4g} against {mean:.4g} %)" for name, (std, mean) in shares.items() if mean >= std]
    text = "rank 2 explains more of the standard deviations around their mean than of the means"
    return [
        at_least(f"{title}: variance of standard deviations at rank 2, in the worst layer", [least], _LEAST, " %"),
        Check(f"{title}: {text}, in every layer", not wrong, f"{title}: {text} but in {', '.join(wrong)}"),
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Share of variance that ranks explain, a line for each kernel."""
    count = len(figure["layers"])
    columns = min(count, 2)
    grid = canvas.subplots(math.ceil(count / columns), columns, sharex=True, sharey=True, squeeze=False)
    for axes, (title, layers) in zip(grid.flat, figure["layers"].items()):
        for kind, (text, colour) in (_KINDS | {"spread": ("standard deviations around their mean", "#f59f00")}).items():
            for number, layer in enumerate(layers.values()):
                shares = layer[kind] if kind == "spread" else list(accumulate(layer[kind]))
                label = text if number == 0 else None
                axes.plot(
                    range(1, len(shares) + 1), shares, marker="o", markersize=2, linewidth=1, color=colour, label=label
                )
        axes.set_title(title, fontsize=9)
        axes.set_ylim(0, 1.02)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    canvas.legend(
        *grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=8
    )
    canvas.supxlabel("rank", fontsize=9)
    canvas.supylabel("share of variance explained", fontsize=9)


register(
    Recipe(
        id="kt-spectrum",
        title="Variance of trained standard deviations and means that low ranks explain",
        presets=posthoc.PRESETS,
        seeds=posthoc.SEEDS,
        measure=measure,
        draw=draw,
    )
)
