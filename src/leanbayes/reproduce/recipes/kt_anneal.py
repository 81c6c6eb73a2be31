"""kt-anneal: standard deviations during and after KL annealing (k-tied Normal, appendix C and figure 10)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.recipes import _kt_posthoc as posthoc
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

# The paper shows the ResNet; the MLP is annealed as in kt-train.
_ANNEALED = {"resnet": None, "mlp": 0.5}
# Networks whose standard deviations are compared with the prior's, and what the mean must be of it.
_WIDE = ("mlp", "cnn", "lstm")
_HALF = 0.5
# By how much, on average over layers, standard deviations must change once the KL has its full weight.
_CHANGE = 10.0


def measure(run: Run) -> Outcome:
    """Follow the mean standard deviation of every layer, and compare those of converged networks with the prior."""
    s, seed = run.settings, run.seeds[0]
    annealed = [model for model in _ANNEALED if model in s["models"]]
    wide = [model for model in _WIDE if model in s["models"]]
    curves = run.units(_curve, {f"annealed-{model}-seed{seed}": (model, seed) for model in annealed})
    shares = run.units(_share, {f"plain-{model}-seed{seed}": (model, seed) for model in wide})
    rows: list[Row] = []
    checks: list[Check] = posthoc.all_there(run, kt.MODELS)
    for model in annealed:
        title, curve = kt.MODELS[model].title, curves[f"annealed-{model}-seed{seed}"]
        changes = []
        for layer, values in curve["layers"].items():
            then, last = values[curve["annealed"] - 1], values[-1]
            changes.append(100 * abs(math.log(last / then)))
            rows.append(Row(f"{title}, {layer}", "mean standard deviation where annealing ends", None, [then]))
            rows.append(Row(f"{title}, {layer}", "mean standard deviation at the end", None, [last]))
        text = f"{title}: change of standard deviations after annealing"
        rows.append(Row(title, "change of standard deviations after annealing, log scale, %", None, [fmean(changes)]))
        checks.append(at_least(text, [fmean(changes)], _CHANGE, " %"))
    for model in wide:
        title, share = kt.MODELS[model].title, shares[f"plain-{model}-seed{seed}"]
        rows.append(Row(f"{title}, not annealed", "mean standard deviation, of the prior's", "> 0.5", [share]))
        checks.append(at_least(f"{title}: mean standard deviation, of the prior's", [share], _HALF))
    figure = {kt.MODELS[model].title: curves[f"annealed-{model}-seed{seed}"] for model in annealed}
    notes = [
        f"seed {seed}; the ResNet's KL comes in over the first {100 * s['anneal']['resnet']:.0f} % of the training, as "
        f"published; the MLP's over {100 * (_ANNEALED['mlp'] or 0):.0f} %, in steps of 100 batches, as in kt-train",
        "changes are of logarithms, averaged over layers; not annealed: the networks of kt-posthoc, all kernels that "
        "the paper looks at",
        *posthoc.precision_notes(run),
    ]
    return Outcome(rows, checks, {"curves": figure}, notes)


def _curve(run: Run, model: str, seed: int) -> dict[str, Any]:
    """Mean standard deviations by layer after every epoch, and the epoch in which annealing ends."""
    share = _ANNEALED[model] or run.settings["anneal"][model]
    _, records = kt.train(run, model, "mean-field", seed, share)
    noted = [record[kt.DEVIATIONS] for record in records]
    layers = {name: [float(f"{one[name]:.5g}") for one in noted] for name in noted[0]}
    return {"annealed": max(1, math.ceil(share * len(noted))), "layers": layers}


def _share(run: Run, model: str, seed: int) -> float:
    """Mean standard deviation of a network without annealing, over that of its prior."""
    trained, _ = posthoc.mean_field(run, model, seed)
    found = kt.deviations(trained, kt.MODELS[model].layers).values()
    mean = sum(float(std.double().sum()) for std in found) / sum(std.numel() for std in found)
    return mean / run.settings["prior_std"][model]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Mean standard deviations over the epochs, a line for each layer; grey where the KL comes in."""
    from matplotlib import colormaps

    grid = canvas.subplots(1, len(figure["curves"]), squeeze=False)[0]
    for axes, (title, curve) in zip(grid, figure["curves"].items()):
        axes.axvspan(0, curve["annealed"], color="#e9ecef", linewidth=0)
        count = len(curve["layers"])
        for number, (name, values) in enumerate(curve["layers"].items()):
            # From the first layer to the last.
            colour = colormaps["viridis"](number / count)
            axes.plot(range(1, len(values) + 1), values, linewidth=1, color=colour, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=9)
        axes.legend(frameon=False, fontsize=6 if count > 6 else 8, ncols=2 if count > 6 else 1)
    grid[0].set_ylabel("mean standard deviation")


register(
    Recipe(
        id="kt-anneal",
        title="Standard deviations while the KL comes in, and after",
        presets=posthoc.PRESETS,
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
