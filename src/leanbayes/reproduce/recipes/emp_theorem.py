"""emp-theorem: the divergence of a mixture in closed form, and gradients by one draw (EMP, theorems 1 and 2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.func import functional_call

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_COMPONENTS = 5
_PRIOR_STD = 1.0
_GRADIENT = "gradient of one draw, mean"


def measure(run: Run) -> Outcome:
    """Both theorems by Monte Carlo."""
    sizes = run.settings["dimensions"]
    found = {size: run.unit(f"divergence-{size}", lambda size=size: _divergence(run, size)) for size in sizes}
    rows: list[Row] = []
    for size, one in found.items():
        name = f"KL in {size} dimension{'s' if size > 1 else ''}"
        rows += [
            Row(name, "nats, closed form", None, [one["closed"]]),
            Row(name, "nats, Monte Carlo", None, [one["drawn"]]),
            Row(name, "standard error of that", None, [one["error"]]),
            Row(name, "nats, with the entropy as printed in eq. 7", None, [one["printed"]]),
        ]
    curve = {
        "dimensions": list(found),
        "gap": [abs(one["closed"] - one["drawn"]) for one in found.values()],
        "printed": [abs(one["printed"] - one["drawn"]) for one in found.values()],
    }
    last = found[sizes[-1]]
    distance = abs(last["closed"] - last["drawn"]) / last["error"]
    gradients = run.unit("gradients", lambda: _gradients(run))
    rows += [
        Row(_GRADIENT, "largest distance from the exact one, standard errors", None, [gradients["most"]]),
        Row(_GRADIENT, "mean of the squared distances (1 where unbiased)", 1.0, [gradients["squares"]]),
    ]
    checks = [
        at_most(f"KL in {sizes[-1]} dimensions: distance from Monte Carlo", [distance], 4.0, " standard errors"),
        # Over as many elements the largest of unbiased ones stays below this in all but one of 1,000 runs.
        at_most("gradient: largest distance", [gradients["most"]], gradients["limit"], " standard errors"),
        at_most("gradient: mean squared distance", [gradients["squares"]], 1 + gradients["spread"]),
    ]
    notes = [
        "of well separated components the entropy of the mixture is that of a component plus that of the index; eq. 7 "
        "has the latter with the wrong sign, and K D / 2 in the place of D / 2",
    ]
    return Outcome(rows, checks, {"curve": curve}, notes)


def _divergence(run: Run, size: int) -> dict[str, float]:
    """KL of a mixture of K Gaussians from the prior: in closed form for separated components, and by its density."""
    sigma, draws = run.settings["sigma"], run.settings["draws"]
    with SeededRandom(run.seeds[0] + size):
        centres = 0.5 * torch.randn(_COMPONENTS, size, dtype=torch.float64)
        mixture = MixtureSameFamily(
            Categorical(torch.ones(_COMPONENTS, dtype=torch.float64)),
            Independent(Normal(centres, torch.full_like(centres, sigma)), 1),
        )
        points = mixture.sample((draws,))
    prior = Normal(torch.zeros(size, dtype=torch.float64), torch.full((size,), _PRIOR_STD, dtype=torch.float64))
    values = mixture.log_prob(points) - prior.log_prob(points).sum(-1)
    squares = float(centres.square().sum()) / _COMPONENTS / (2 * _PRIOR_STD**2)
    spread = size * (sigma**2 / (2 * _PRIOR_STD**2) - 0.5 - math.log(sigma / _PRIOR_STD))
    entropy = math.log(_COMPONENTS)
    return {
        "closed": squares + spread - entropy,
        "printed": squares + spread + entropy,
        "drawn": float(values.mean()),
        "error": float(values.std() / draws**0.5),
    }


def _gradients(run: Run) -> dict[str, float]:
    """Gradients of a network with three patched layers: by single draws, and over all its combinations of copies."""
    with SeededRandom(run.seeds[0]):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        model = lb.bayesianize(net, lb.EMP(3, init_std=1.0), where=lb.types(nn.Linear))
        x, y = torch.randn(16, 3, dtype=torch.float64), torch.randint(3, (16,))
        names = [f"{place}.{key}.posterior" for place in "024" for key in ("weight", "bias")]
        copies: list[Any] = [model.get_submodule(name).copies for name in names]
        exact = _exact(copies, x, y)
        total = torch.zeros_like(exact)
        squares = torch.zeros_like(exact)
        draws = run.settings["gradients"]
        for _ in range(draws):
            one = _flat(torch.autograd.grad(F.cross_entropy(model(x), y), copies))
            total += one
            squares += one.square()
    mean = total / draws
    error = ((squares / draws - mean.square()) / (draws - 1)).sqrt()
    distances = ((mean - exact) / error).abs()
    count = len(distances)
    # Elements depend on each other: their mean square spreads as that of the 27 - 1 frequencies that they follow from.
    return {
        "most": float(distances.max()),
        "squares": float(distances.square().mean()),
        "limit": float(torch.special.ndtri(torch.tensor(1 - 0.5e-3 / count, dtype=torch.float64))),
        "spread": 4 * math.sqrt(2 / 26),
    }


def _exact(copies: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    loss = torch.zeros((), dtype=torch.float64)
    for chosen in itertools.product(range(3), repeat=3):
        values = {
            f"{place}.{key}": copies[2 * layer + part][chosen[layer]]
            for layer, place in enumerate("024")
            for part, key in enumerate(("weight", "bias"))
        }
        loss = loss + F.cross_entropy(functional_call(plain, values, (x,)), y) / 27
    return _flat(torch.autograd.grad(loss, copies))


def _flat(values: Any) -> Tensor:
    return torch.cat([value.flatten() for value in values])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Distance of the closed form from Monte Carlo over the dimension."""
    axes = canvas.subplots()
    curve = figure["curve"]
    axes.plot(curve["dimensions"], curve["gap"], marker="o", color="#3b5bdb", label="closed form")
    axes.plot(curve["dimensions"], curve["printed"], marker="o", color="#868e96", label="entropy as printed")
    axes.set_xscale("log")
    axes.set_xlabel("dimensions")
    axes.set_ylabel("distance from Monte Carlo, nats")
    axes.set_title("components that do not overlap have a divergence in closed form")
    axes.legend(frameon=False)


register(
    Recipe(
        id="emp-theorem",
        title="The divergence of patches in closed form, and gradients by one draw, against the truth",
        presets={
            "smoke": {"dimensions": (1, 10), "sigma": 0.05, "draws": 2000, "gradients": 300},
            "short": {"dimensions": (1, 3, 10, 30, 100), "sigma": 0.05, "draws": 200_000, "gradients": 20_000},
            "paper": {"dimensions": (1, 3, 10, 30, 100), "sigma": 0.05, "draws": 1_000_000, "gradients": 100_000},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
