"""r1-priors: the prior of a weight that a prior of rank-1 factors induces (Rank-1 BNNs, figure 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom, current_sampling
from leanbayes.noise import CAUCHY_LIMIT
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_least, at_most, every
from leanbayes.reproduce.recipes._tails import hill, hill_limit
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run
from leanbayes.training.seeds import derive

_DF = 3.0
# Of the grid of logarithms of factors that integrals are taken on.
_STEP, _REACH = 0.02, 45.0
# Between these probabilities of a larger value the tail index is taken.
_TAIL = (1e-2, 2e-3)
_NEAR, _FAR = 0.1, 5.0
# Kolmogorov's statistic times sqrt(n) is above this for one in a thousand sets of draws.
_KOLMOGOROV = 1.95
_ERRORS = 3.5


@dataclass(frozen=True)
class Factor:
    """A prior of rank-1 factors.

    Attributes:
        title: Its name.
        method: Draws from it; None for the inverse gamma of a squared factor, which the library does not have.
        loc: Where its location is put.
        vectors: How many factors of it scale a weight: one (s is 1), or r and s.
        index: Tail index of the weight: P(abs(w) > x) falls as x^-index; None where it falls faster than any power.
        colour: In the figure.
    """

    title: str
    method: lb.Rank1 | None
    loc: float | None = None
    vectors: int = 1
    index: float | None = None
    colour: str = "#868e96"


def _rank1(posterior: str, prior: lb.Prior, scale: float = 1.0, on: str = "output") -> lb.Rank1:
    return lb.Rank1(components=1, posterior=posterior, prior=prior, on=on, init_std=scale)


_STANDARD = lb.Normal(0.0, 1.0), lb.Cauchy(0.0, 1.0)
FACTORS = {
    "normal": Factor("Normal(0, 1)", _rank1("normal", _STANDARD[0]), 0.0, colour="#3b5bdb"),
    "cauchy": Factor("Cauchy(0, 1)", _rank1("cauchy", _STANDARD[1]), 0.0, index=1.0, colour="#d9480f"),
    "lognormal": Factor("LogNormal(0, 1)", _rank1("lognormal", lb.LogNormal(0.0, 1.0)), 0.0, colour="#2b8a3e"),
    "halfcauchy": Factor("HalfCauchy(1)", _rank1("halfcauchy", lb.HalfCauchy(1.0)), 0.0, index=1.0, colour="#f08c00"),
    "gamma": Factor(f"inverse gamma r^2, df {_DF:g}", None, index=_DF, colour="#7048e8"),
    "normal-trained": Factor("Normal(1, 0.1)", _rank1("normal", lb.Normal(1.0, 0.1), 0.1), 1.0),
    "cauchy-trained": Factor("Cauchy(1, 0.1)", _rank1("cauchy", lb.Cauchy(1.0, 0.1), 0.1), 1.0, index=1.0),
    "normal-both": Factor("Normal(0, 1), r and s", _rank1("normal", _STANDARD[0], on="both"), 0.0, 2),
    "cauchy-both": Factor("Cauchy(0, 1), r and s", _rank1("cauchy", _STANDARD[1], on="both"), 0.0, 2, 1.0),
}


def measure(run: Run) -> Outcome:
    """Weights that the library draws beside the integral over the factors."""
    found = run.units(_factor, {name: (name,) for name in FACTORS})
    rows = []
    checks = []
    for name, one in found.items():
        title = FACTORS[name].title
        rows.append(Row(title, f"probability of a size below {_NEAR:g}", None, [one["drawn"]["near"]]))
        rows.append(Row(title, f"probability of a size above {_FAR:g}", None, [one["drawn"]["far"]]))
        rows.append(Row(title, "tail index, Hill", None, [one["drawn"]["index"]]))
        rows.append(Row(title, "tail index over the same range, by integral", None, [one["exact"]["index"]]))
        if (limit := FACTORS[name].index) is not None:
            rows.append(Row(title, "tail index in the limit", None, [limit]))
        checks.append(at_most(f"{title}: draws follow the integral, distance * sqrt(n)", [one["ks"]], _KOLMOGOROV))
        off = abs(one["drawn"]["index"] - one["clipped"]) / one["drawn"]["error"]
        checks.append(at_most(f"{title}: Hill's estimate off the integral, standard errors", [off], _ERRORS))
    exact = {name: one["exact"] for name, one in found.items()}
    checks += _published_checks(exact) + _positive_checks()
    notes = [
        "w N(0, 1) times r, s = 1 unless both are named; the paper does not print the scales of its figure",
        f"tail index between the values with probabilities {_TAIL[0]:g} and {_TAIL[1]:g} above them; where "
        "none is given for the limit, all moments are finite",
        f"the library clips standard Cauchy noise at {CAUCHY_LIMIT:g}, which 0.06 % of the draws are beyond; the draws "
        "are checked against the integral over factors that are clipped likewise",
    ]
    shown = {name: one["curve"] for name, one in found.items()}
    return Outcome(rows, checks, {"curves": shown}, notes)


def _published_checks(exact: Mapping[str, Mapping[str, float]]) -> list[Check]:
    """What the caption of figure 1 says."""
    normal, cauchy = exact["normal"], exact["cauchy"]
    near = f"|w| below {_NEAR:g}: {cauchy['near']:.4g} against {normal['near']:.4g}"
    far = f"|w| above {_FAR:g}: {cauchy['far']:.4g} against {normal['far']:.4g}"
    return [
        Check("Cauchy factors: less mass around 0 than with normal ones", cauchy["near"] < normal["near"], near),
        Check("Cauchy factors: heavier tails than with normal ones", cauchy["far"] > normal["far"], far),
        every("Cauchy factors: tail index", [cauchy["index"]], 0.95, 1.05),
        every("inverse gamma: tail index", [exact["gamma"]["index"]], 0.85 * _DF, 1.05 * _DF),
        at_least("normal factors: tail index", [normal["index"]], 4.0),
        at_least("log-normal factors: tail index", [exact["lognormal"]["index"]], 2.0),
    ]


def _positive_checks() -> list[Check]:
    """Real and positive factors around 0 induce the same prior; an inverse gamma induces Student's t."""
    points = torch.linspace(-6, 3, 200, dtype=torch.float64).exp()
    real, positive, gamma = (density(points, FACTORS[name]) for name in ("cauchy", "halfcauchy", "gamma"))
    same = float((real / positive - 1).abs().max())
    off = float((gamma.log() - lb.StudentT(_DF).log_prob(points)).abs().max())
    return [
        at_most("Cauchy and half-Cauchy factors: largest relative difference of the densities", [same], 1e-9),
        at_most("inverse gamma: largest difference of log densities from Student's t", [off], 1e-6),
    ]


def _factor(run: Run, name: str) -> dict[str, Any]:
    """Draws of one prior beside its integral."""
    one = FACTORS[name]
    with SeededRandom(derive(run.seeds[0], name)):
        drawn = (torch.randn(run.settings["draws"], dtype=torch.float64) * scales(one, run.settings["draws"])).abs()
    grid = torch.linspace(-4, 16, 801, dtype=torch.float64).exp()
    above = survival(grid, one)
    low, high = (float(grid[(above >= share).sum() - 1]) for share in _TAIL)
    tail = torch.linspace(math.log(low), math.log(high), 400, dtype=torch.float64).exp()
    index, error = hill(drawn, low, high)
    clipped = hill_limit(tail, survival(tail, one, clipped=True))
    near, far = (survival(torch.tensor([edge], dtype=torch.float64), one).item() for edge in (_NEAR, _FAR))
    shown = torch.linspace(-4, 7, 120, dtype=torch.float64).exp()
    return {
        "drawn": {
            "near": float((drawn < _NEAR).double().mean()),
            "far": float((drawn > _FAR).double().mean()),
            "index": index,
            "error": error,
        },
        "exact": {"near": 1 - near, "far": far, "index": hill_limit(tail, survival(tail, one))},
        "clipped": clipped,
        "ks": _distance(drawn, one) * len(drawn) ** 0.5,
        "curve": {
            "w": shown.tolist(),
            "density": density(shown, one).tolist(),
            "survival": survival(shown, one).tolist(),
            "drawn": [float((drawn > edge).double().mean()) for edge in shown],
        },
    }


@torch.no_grad()
def scales(one: Factor, draws: int) -> Tensor:
    """Draws ``[draws]`` of the product of factors, by the library's posterior put where the prior is."""
    if one.method is None:
        shape = torch.tensor(_DF / 2, dtype=torch.float64)
        return torch.distributions.Gamma(shape, shape).sample((draws,)).rsqrt()
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(layer.weight)
    model: Any = lb.bayesianize(layer, one.method)
    posterior = model.get_submodule("weight").posterior
    for part in (posterior.output, posterior.input)[: one.vectors]:
        part.loc.fill_(one.loc)
    # Where the posterior is the prior, there is nothing between them.
    assert float(lb.kl(model)) < 1e-6
    return model.get_submodule("weight").rsample(draws, current_sampling()).flatten()


def _distance(drawn: Tensor, one: Factor) -> float:
    """Kolmogorov's distance of draws from the distribution, on a subset of them."""
    count = len(drawn)
    values = drawn.sort().values
    picked = torch.linspace(0, count - 1, min(count, 2001)).round().long()
    below = 1 - survival(values[picked], one, clipped=True)
    return float(torch.maximum((picked + 1) / count - below, below - picked / count).max())


def survival(x: Tensor, one: Factor, clipped: bool = False) -> Tensor:
    """P(abs(w) > x) = E erfc(x / (sqrt(2) abs(r))) for positive x ``[n]``; with Cauchy noise clipped, or as it is."""
    logs, weights = _log_factor(one, clipped)
    return _sum(lambda scale: torch.erfc(x.unsqueeze(1) / (math.sqrt(2) * scale)), logs, weights)


def density(x: Tensor, one: Factor) -> Tensor:
    """The density of w at positive x ``[n]``: E N(x; 0, r^2)."""
    logs, weights = _log_factor(one)

    def normal(scale: Tensor) -> Tensor:
        z = x.unsqueeze(1) / scale
        return (-0.5 * z.square()).exp() / (scale * math.sqrt(2 * math.pi))

    return _sum(normal, logs, weights)


def _sum(function: Callable[[Tensor], Tensor], logs: Tensor, weights: Tensor) -> Tensor:
    return function(logs.exp()) @ weights


def _log_factor(one: Factor, clipped: bool = False) -> tuple[Tensor, Tensor]:
    """Logarithms of the size of a factor, and their probabilities; of the product where there are two."""
    logs = torch.arange(-_REACH, _REACH + _STEP / 2, _STEP, dtype=torch.float64)
    size = logs.exp()
    if one.method is None:
        shape = _DF / 2
        # r^2 is inverse gamma, and 2 r dr = d(r^2)
        log_density = shape * math.log(shape) - math.lgamma(shape) - 2 * shape * logs - shape / size.square()
        weights = 2 * _STEP * log_density.exp()
    else:
        prior: Any = one.method.factor_prior()
        signs = (1, -1) if prior.support == "real" else (1,)
        weights = sum((_side(prior, sign, size, clipped) for sign in signs), torch.zeros_like(size))
    if one.vectors == 1:
        return logs, weights
    both = torch.nn.functional.conv1d(weights.view(1, 1, -1), weights.flip(0).view(1, 1, -1), padding=len(logs) - 1)
    return torch.linspace(-2 * _REACH, 2 * _REACH, 2 * len(logs) - 1, dtype=torch.float64), both.flatten()


def _side(prior: Any, sign: int, size: Tensor, clipped: bool) -> Tensor:
    """Probabilities of factors of one sign; what is clipped lies at the edge."""
    weights = _STEP * size * prior.log_prob(sign * size).exp()
    if clipped and isinstance(prior, lb.Cauchy | lb.HalfCauchy):
        loc = prior.loc if isinstance(prior, lb.Cauchy) else 0.0
        edge = abs(loc + sign * CAUCHY_LIMIT * prior.scale)
        beyond = size > edge
        weights[(~beyond).sum()] = weights[beyond].sum()
        weights[(~beyond).sum() + 1 :] = 0
    return weights


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Densities around 0, and how the tails fall."""
    left, right = canvas.subplots(1, 2)
    names = [name for name in figure["curves"] if FACTORS[name].vectors == 1 and not name.endswith("-trained")]
    for name in names:
        one, curve = FACTORS[name], figure["curves"][name]
        # Half-Cauchy and Cauchy factors induce the same.
        style = "--" if name == "halfcauchy" else "-"
        inside = [number for number, w in enumerate(curve["w"]) if w <= 4]
        w, density_there = ([curve[key][number] for number in inside] for key in ("w", "density"))
        left.plot(
            [-v for v in reversed(w)] + w, density_there[::-1] + density_there, style, color=one.colour, label=one.title
        )
        right.plot(curve["w"], curve["survival"], style, color=one.colour)
        right.plot(curve["w"][::6], curve["drawn"][::6], "o", color=one.colour, markersize=3, fillstyle="none")
    plain = [number / 50 for number in range(-200, 201)]
    gauss = [math.exp(-0.5 * w * w) / math.sqrt(2 * math.pi) for w in plain]
    left.plot(plain, gauss, ":", color="0.3", label="no factor")
    sizes = [math.exp(number / 20) for number in range(-80, 36)]
    right.plot(sizes, [math.erfc(w / math.sqrt(2)) for w in sizes], ":", color="0.3")
    left.set(xlabel="weight", ylabel="density", ylim=(0, 1.2), xlim=(-4, 4))
    right.set(xscale="log", yscale="log", xlabel="size of the weight", ylabel="probability of a larger one")
    right.set(xlim=(0.05, 1000), ylim=(1e-5, 1.2))
    canvas.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False, fontsize=7)


register(
    Recipe(
        id="r1-priors",
        title="Priors of weights that rank-1 factors induce: mass around 0 and tails",
        presets={"smoke": {"draws": 20_000}, "short": {"draws": 1_000_000}, "paper": {"draws": 4_000_000}},
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
