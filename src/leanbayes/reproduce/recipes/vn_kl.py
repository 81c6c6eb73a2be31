"""vn-kl: the KL divergence of variational dropout against log alpha under three priors (Variance Networks, fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import Sampling, SeededRandom
from leanbayes.posteriors._base import Posterior
from leanbayes.priors import Prior
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run
from leanbayes.training.seeds import derive

PRIORS: dict[str, Prior] = {"log-uniform": lb.LogUniform(), "Student-t": lb.StudentT(1e-16), "ARD": lb.ARD()}
STYLES = {"log-uniform": "-", "Student-t": "--", "ARD": ":"}
# Standard errors that a sampled difference may be from a constant; there are some hundred differences.
_ERRORS = 5.0


def measure(run: Run) -> Outcome:
    """The library's own divergences on a grid, and Student's t also from its density by Monte Carlo.

    The closed form that the library uses for Student's t with so few degrees of freedom is that of the log-uniform
    prior. Only the sampled divergence shows that this is right, for weights of any size.
    """
    grid = torch.linspace(-10, 10, run.settings["points"]).tolist()
    curves = {name: [_divergence(prior, log_alpha) for log_alpha in grid] for name, prior in PRIORS.items()}
    exact = [_divergence(lb.LogUniform(exact=True), log_alpha) for log_alpha in grid]
    rows, checks = [], [_decreases(name, curve) for name, curve in curves.items()]
    shown: dict[str, list[float]] = {}
    for mean in run.settings["means"]:
        ways = [
            run.unit(f"mean{mean}-seed{seed}", lambda m=mean, s=seed: _sampled(run, grid, m, s)) for seed in run.seeds
        ]
        offs = [_off_constant(values, exact) for values, _ in ways]
        most = max(abs(o) / e for off, (_, errors) in zip(offs, ways) for o, e in zip(off, errors))
        rows.append(_row(mean, offs))
        checks.append(_coincides(mean, offs, most))
        shown[str(mean)] = [o + e for o, e in zip(offs[0], exact)]
    worst = max(abs(a - b) for a, b in zip(curves["log-uniform"], exact))
    rows.append(Row("log-uniform, approximation by Molchanov et al.", "largest error, nats", None, [worst]))
    notes = ["the divergences are shown less their limits at infinite alpha"]
    return Outcome(rows, checks, {"log_alpha": grid, "curves": curves, "sampled": shown}, notes)


def _divergence(prior: Prior, log_alpha: float) -> float:
    """KL of a single weight, by the library, less its limit at infinite alpha."""
    layer = nn.Linear(1, 1, bias=False)
    model = lb.bayesianize(layer, lb.VariationalDropout(prior=prior, estimator="local", init_log_alpha=log_alpha))
    return lb.kl(model).item()


def _sampled(run: Run, grid: list[float], mean: float, seed: int) -> tuple[list[float], list[float]]:
    """KL of N(mean, alpha mean^2) from Student's t by its density: estimates and their standard errors."""
    prior = PRIORS["Student-t"]
    weights = torch.full((run.settings["draws"],), float(mean), dtype=torch.float64)
    estimates = []
    with SeededRandom(derive(seed, str(mean))), torch.no_grad():
        for log_alpha in grid:
            posterior = lb.VariationalDropout(estimator="local", init_log_alpha=log_alpha).build(weights, None)
            estimates.append(_log_ratio(posterior, prior))
    return [t.mean().item() for t in estimates], [t.std().item() / len(t) ** 0.5 for t in estimates]


def _log_ratio(posterior: Posterior, prior: Prior) -> Tensor:
    w = posterior.rsample(1, Sampling())
    return (posterior.log_prob(w) - prior.log_prob(w)).flatten()


def _decreases(name: str, curve: list[float]) -> Check:
    rises = sum(after >= before for before, after in pairwise(curve))
    return Check(f"{name}: the divergence decreases in alpha", rises == 0, f"it rises in {rises} places")


def _off_constant(values: list[float], exact: list[float]) -> list[float]:
    """How far a curve is from another one but for a constant."""
    differences = [a - b for a, b in zip(values, exact)]
    return [value - fmean(differences) for value in differences]


def _row(mean: float, offs: list[list[float]]) -> Row:
    name = f"Student-t less log-uniform, weights of mean {mean:g}"
    metric = "largest deviation from a constant, nats"
    return Row(name, metric, "indistinguishable", [max(map(abs, off)) for off in offs])


def _coincides(mean: float, offs: list[list[float]], errors: float) -> Check:
    text = f"Student-t coincides with log-uniform up to a constant, weights of mean {mean:g}"
    largest = max(abs(value) for off in offs for value in off)
    return Check(text, errors < _ERRORS, f"they differ by {largest:.3g} nats, {errors:.1f} standard errors")


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The three curves, and what was sampled from the density of Student's t."""
    axes = canvas.subplots()
    for name, curve in figure["curves"].items():
        axes.plot(figure["log_alpha"], curve, STYLES[name], label=name, linewidth=2)
    for (mean, values), marker in zip(figure["sampled"].items(), "ox+"):
        label = f"Student-t, sampled, weights of mean {float(mean):g}"
        axes.plot(
            figure["log_alpha"][::4], values[::4], marker, color="0.3", label=label, markersize=5, fillstyle="none"
        )
    axes.set(xlabel="log alpha", ylabel="KL divergence less its limit, nats")
    axes.legend()


register(
    Recipe(
        id="vn-kl",
        title="KL divergence of variational dropout against log alpha under three priors",
        presets={
            "smoke": {"points": 21, "draws": 2_000, "means": [1.0]},
            "short": {"points": 81, "draws": 200_000, "means": [0.01, 1.0, 100.0]},
            "paper": {"points": 201, "draws": 2_000_000, "means": [0.01, 1.0, 100.0]},
        },
        seeds={"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)},
        measure=measure,
        draw=draw,
    )
)
