"""vn-mmd: how far a trained layer is from its zero-mean approximation (Variance Networks, theorem 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.analysis import mmd_bound
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

LAYER = "dense1"
# Standard errors that an estimated change may exceed what is possible by; it is the largest of thousands.
_ERRORS = 5.0


def measure(run: Run) -> Outcome:
    """The bound and the distance itself for the first dense layer, and what dropping its means does to predictions."""
    found = run.each_seed(_one)
    weights = found[0]["weights"]
    # Where sqrt(2 D / (pi alpha)) falls below 2, beyond which no distance lies.
    useful = math.log(weights / (2 * math.pi))
    name = f"{LAYER}, {weights:,} weights"
    rows = [
        Row(name, "log alpha", 6.9, [one["log_alpha"] for one in found]),
        Row(name, "bound sqrt(2 D / (pi alpha))", None, [one["bound"] for one in found]),
        Row(name, "exact distance 2 erf(sqrt(D / (8 alpha)))", None, [one["exact"] for one in found]),
        Row(name, "log alpha above which the bound is below 2", None, [useful]),
        Row(name, "largest change of a class probability without the means", None, [one["change"] for one in found]),
    ]
    checks = [_check_bound(found), _check_vacuous(found), _check_change(found)]
    vacuous = sum(one["vacuous"] for one in found)
    notes = [f"the bound is vacuous, at 2 or more, for {vacuous} of {len(found)} networks"]
    figure = {
        "weights": weights,
        "layers": [{key: one[key] for key in ("log_alpha", "bound", "exact")} for one in found],
    }
    return Outcome(rows, checks, figure, notes)


def _one(run: Run, seed: int) -> dict[str, Any]:
    model = vn.mnist_layer(run, seed)
    result = mmd_bound(model)[LAYER]
    x = vn.mnist(run)[1][0][: run.settings["images"]].to(run.device)
    change, excess = _change(model, x, run.settings["samples"], result.exact)
    return {
        "log_alpha": math.log(result.alpha),
        "weights": result.weights,
        "bound": result.bound,
        "exact": result.exact,
        "vacuous": result.vacuous,
        "change": change,
        "excess": excess,
    }


@torch.no_grad()
def _change(model: nn.Module, x: Tensor, samples: int, exact: float) -> tuple[float, float]:
    """The largest change of an averaged class probability, and by how many standard errors it exceeds what is possible.

    A probability lies between 0 and 1, so its expectation changes by at most half of the distance. Both averages use
    the same noise.
    """
    with_means = lb.predict(model, x, samples, seed=0).outputs.softmax(-1).double()  # [S, B, C]
    with lb.sampling(zero_mean=True):
        without = lb.predict(model, x, samples, seed=0).outputs.softmax(-1).double()
    difference = with_means - without
    change = difference.mean(0).abs()
    error = difference.std(0) / math.sqrt(samples)
    return change.max().item(), ((change - exact / 2) / error.clamp_min(1e-12)).max().item()


def _check_bound(found: list[dict[str, Any]]) -> Check:
    ratio = max(one["exact"] / one["bound"] for one in found)
    return Check("the exact distance is within the bound", ratio <= 1, f"it is {ratio:.4g} times the bound")


def _check_vacuous(found: list[dict[str, Any]]) -> Check:
    silent = sum(one["vacuous"] != (one["bound"] >= 2) for one in found)
    return Check("a bound of 2 or more says that it is vacuous", not silent, f"{silent} bounds do not say so")


def _check_change(found: list[dict[str, Any]]) -> Check:
    most = max(one["excess"] for one in found)
    text = "no class probability changes by more than half of the exact distance when the means are dropped"
    return Check(text, most < _ERRORS, f"one changes by {most:.1f} standard errors more")


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Bound and distance against log alpha for a layer of this size, and where the trained layers are."""
    axes = canvas.subplots()
    log_alpha = [step / 10 for step in range(0, 251)]
    curve = [mmd_bound(math.exp(value), figure["weights"]) for value in log_alpha]
    axes.plot(log_alpha, [point.bound for point in curve], label="bound")
    axes.plot(log_alpha, [point.exact for point in curve], label="exact distance")
    trained = figure["layers"]
    axes.plot([one["log_alpha"] for one in trained], [one["exact"] for one in trained], "o", label="trained layers")
    axes.axhline(2, color="0.6", linewidth=1, linestyle=":")
    axes.set_yscale("log")
    axes.set(xlabel="log alpha", ylabel=f"distance of {figure['weights']:,} weights from zero mean")
    axes.legend()


register(
    Recipe(
        id="vn-mmd",
        title="Distance of a trained layer from its zero-mean approximation, beside its bound",
        presets={
            "smoke": vn.MNIST_PRESETS["smoke"] | {"images": 20, "samples": 20},
            "short": vn.MNIST_PRESETS["short"] | {"images": 500, "samples": 200},
            "paper": vn.MNIST_PRESETS["paper"] | {"images": 2000, "samples": 1000},
        },
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
