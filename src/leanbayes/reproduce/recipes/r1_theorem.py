"""r1-theorem: rank-1 noise moves the score as full weight noise of its covariance does (Rank-1 BNNs, theorem 1)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

import leanbayes as lb
from leanbayes._sampling import SeededRandom, current_sampling
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Layers of the network that get the noise, one at a time.
_LAYERS = ("0", "2", "4")
_DECAY = 1e-2
# Distances of covariances, relative: where theorem 1 holds as the noise goes to 0, and where it has no reason to.
_SAME, _OTHER = 0.03, 0.1
_ROWS = 4000


def measure(run: Run) -> Outcome:
    """Covariances of the score around a local minimum under three kinds of noise."""
    scales = run.settings["scales"]
    found = {layer: run.unit(f"layer{layer}", lambda layer=layer: _distances(run, layer)) for layer in _LAYERS}
    rows: list[Row] = []
    checks = []
    for number, one in enumerate(found.values(), start=1):
        name = f"layer {number}"
        for scale, distance, full in zip(scales, one["rank1"], one["full"]):
            rows.append(Row(name, f"rank-1 noise of {scale:g}: distance from the theorem", None, [distance]))
            rows.append(Row(name, f"full noise of {scale:g}: distance from the theorem", None, [full]))
        rows.append(Row(name, "independent weights: distance from the theorem", None, [one["independent"]]))
        checks.append(at_most(f"{name}, rank-1 noise of {scales[-1]:g}: distance", one["rank1"][-1:], _SAME))
        checks.append(at_most(f"{name}, full noise of {scales[-1]:g}: distance", one["full"][-1:], _SAME))
        checks.append(at_least(f"{name}, independent weights: distance", [one["independent"]], _OTHER))
    notes = [
        "covariance W_ij Sigma_jl W_kl of the weights, as the proof needs it; printed is Sigma_jk",
        f"a network of 3-5-4-3 units with tanh at a local minimum, {run.settings['draws']:,} draws; distances are in "
        "the Frobenius norm over that of the theorem's covariance, which holds in the limit of no noise",
        "full noise is uniform along the principal axes of the same covariance of all weights",
    ]
    curves = {f"layer {number}": one for number, one in enumerate(found.values(), start=1)}
    return Outcome(rows, checks, {"scales": list(scales), "curves": curves}, notes)


def _minimum() -> tuple[nn.Module, Tensor, Tensor]:
    """A network at a local minimum of its loss."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(60, 3, dtype=torch.float64), torch.randint(3, (60,))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(dict(net.named_parameters()), net, x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return net, x, y


def _loss(values: Mapping[str, Tensor], net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    decay = sum(value.square().sum() for value in values.values())
    return F.cross_entropy(functional_call(net, dict(values), (x,)), y) + _DECAY * decay


def _distances(run: Run, layer: str) -> dict[str, Any]:
    s = run.settings
    with SeededRandom(run.seeds[0]):
        net, x, y = _minimum()
        rest = {name: value.detach() for name, value in net.named_parameters()}
        weight = rest[f"{layer}.weight"]

        def score(weight: Tensor) -> Tensor:
            gradients = grad(_loss)(rest | {f"{layer}.weight": weight}, net, x, y)
            return torch.cat([value.flatten() for value in gradients.values()])

        slope: Any = jacrev(score)(weight).flatten(1)  # [parameters, weights]
        variance = torch.rand(weight.shape[1], dtype=torch.float64) + 0.5
        # E[dW_ij dW_kl] = W_ij Sigma_jl W_kl for a diagonal Sigma
        same_input = torch.eye(weight.shape[1], dtype=torch.float64) * variance
        covariance = torch.einsum("ij,jl,kl->ijkl", weight, same_input, weight).flatten(2).flatten(0, 1)
        wanted = slope @ covariance @ slope.mT
        independent = slope @ covariance.diagonal().diag() @ slope.mT
        found: dict[str, Any] = {"independent": _distance(independent, wanted), "rank1": [], "full": []}
        values, axes = torch.linalg.eigh(covariance)
        root = axes * values.clamp(min=0).sqrt()
        for scale in s["scales"]:
            drawn = _rank1_weights(net, layer, scale * variance.sqrt(), s["draws"])
            found["rank1"].append(_distance(_covariance(score, drawn, scale), wanted))
            noise = (12**0.5) * (torch.rand(s["draws"], len(values), dtype=torch.float64) - 0.5)
            drawn = weight + scale * (noise @ root.mT).unflatten(1, weight.shape)
            found["full"].append(_distance(_covariance(score, drawn, scale), wanted))
    return found


def _rank1_weights(net: nn.Module, layer: str, std: Tensor, draws: int) -> Tensor:
    """Draws ``[draws, out, in]`` of a rank-1 posterior whose input factors have means of 1 and given deviations."""
    plain = copy.deepcopy(net.get_submodule(layer))
    parameter: Any = lb.bayesianize(plain, lb.Rank1(components=1, on="input")).get_submodule("weight")
    with torch.no_grad():
        parameter.posterior.get_submodule("input").raw_std.copy_(std.expm1().log())  # softplus of which is std
        return parameter.rsample(draws, current_sampling())


def _covariance(score: Any, drawn: Tensor, scale: float) -> Tensor:
    scores = torch.cat([vmap(score)(part) for part in drawn.split(_ROWS)])
    return scores.mT.cov(correction=0) / scale**2


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Distance from the theorem over the noise."""
    axes = canvas.subplots()
    for (name, one), colour in zip(figure["curves"].items(), ("#3b5bdb", "#0b7285", "#d9480f")):
        axes.plot(figure["scales"], one["rank1"], marker="o", color=colour, label=f"{name}, rank-1")
        axes.plot(figure["scales"], one["full"], marker="x", linestyle="--", color=colour, label=f"{name}, full")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("standard deviation of the noise")
    axes.set_ylabel("distance of the score's covariance")
    axes.set_title("small rank-1 noise moves the score as full noise does")
    axes.legend(frameon=False, fontsize=8)


register(
    Recipe(
        id="r1-theorem",
        title="Covariance of the score under rank-1 and under full weight noise",
        presets={
            "smoke": {"scales": (0.3, 0.03), "draws": 2000},
            "short": {"scales": (0.5, 0.2, 0.1, 0.05, 0.02, 0.01), "draws": 200_000},
            "paper": {"scales": (0.5, 0.2, 0.1, 0.05, 0.02, 0.01), "draws": 1_000_000},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
