"""emp-family: dropout, DropConnect and ensembles as members of one family (Ensemble Model Patching, table 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_P = 0.3
_KEPT = (1 - _P, _P)
_THIRDS = (1 / 3,) * 3
_SIZES = (6, 8, 3)
_ENSEMBLE = "explicit ensemble"
# Draws of one distribution differ by less than this many standard errors in every moment, but for one run in 10,000.
_FAR = 5.0


@dataclass(frozen=True)
class _Member:
    """A setting of the family beside the method of that name.

    Attributes:
        title: Its name.
        setting: Of the family.
        method: The implementation of its own.
        indices: Indices whose entropy the divergence counts.
        probs: Their probabilities.
    """

    title: str
    setting: Any
    method: Any
    indices: int
    probs: tuple[float, ...]


_WEIGHTS = _SIZES[0] * _SIZES[1] + _SIZES[1] * _SIZES[2]
_MEMBERS = (
    _Member(
        "dropout",
        lb.Patch(2, init_std=1e-8, assign="input", zero=True, mixing=_KEPT),
        lb.MCDropout(_P, estimator="weight"),
        _SIZES[0] + _SIZES[1],
        _KEPT,
    ),
    _Member(
        "DropConnect",
        lb.Patch(2, init_std=1e-8, assign="element", zero=True, mixing=_KEPT),
        lb.DropConnect(_P),
        _WEIGHTS,
        _KEPT,
    ),
    # The number of the network is not counted: it is the same for all, and no parameter decides on it.
    _Member(_ENSEMBLE, lb.Patch(3, init_std=0.5, assign="model"), lb.DeepEnsemble(3), 0, _THIRDS),
    _Member("EMP", lb.Patch(3, init_std=0.5, assign="layer"), lb.EMP(3, init_std=0.5), 2, _THIRDS),
    _Member(
        "ECMP",
        lb.Patch(3, init_std=0.5, assign="element"),
        lb.ECMP(3, init_std=0.5),
        _WEIGHTS + _SIZES[1] + _SIZES[2],
        _THIRDS,
    ),
)


def measure(run: Run) -> Outcome:
    """Outputs and divergence of each member, as a setting of the family and as a method of its own."""
    rows, checks, gaps = [], [], {}
    for number, member in enumerate(_MEMBERS):
        found = run.unit(member.title, lambda number=number: _compare(run, number))
        for key, text in (("mean", "means"), ("std", "deviations")):
            rows.append(Row(member.title, f"{text} of outputs: largest distance, standard errors", None, [found[key]]))
            checks.append(at_most(f"{member.title}: distance of {text}", [found[key]], _FAR, " standard errors"))
        rows.append(Row(member.title, "KL, nats", None, [found["kl"]]))
        rows.append(
            Row(member.title, "KL by equation 2 with the entropy of the indices, nats", None, [found["closed"]])
        )
        difference = abs(found["kl"] / found["closed"] - 1)
        checks.append(at_most(f"{member.title}: KL off equation 2, relative", [difference], 1e-5))
        gaps[member.title] = [found["mean"], found["std"]]
    notes = [
        f"a network of {'-'.join(map(str, _SIZES))} units; p = {_P} is the probability of zero here, that of keeping a "
        "weight in the paper; kept weights are divided by the probability of keeping them",
    ]
    return Outcome(rows, checks, {"gaps": gaps}, notes)


def _compare(run: Run, number: int) -> dict[str, float]:
    member, samples = _MEMBERS[number], run.settings["samples"]
    with SeededRandom(run.seeds[0]):
        x = torch.randn(run.settings["rows"], _SIZES[0])
        ours = lb.bayesianize(_net(), member.setting, where=lb.types(nn.Linear))
        other = _same_values(member, ours)
        drawn = []
        for model in (ours, other):
            with torch.no_grad():
                drawn.append(lb.predict(model, x, samples, joint=True).outputs.double())
    return {**_moments(*drawn), "kl": float(lb.kl(ours).detach()), "closed": _equation_2(member, ours)}


def _equation_2(member: _Member, model: nn.Module) -> float:
    """``sum_k p_k |M_k|^2 / 2`` of all random parameters, less the entropy of the indices."""
    total = 0.0
    for name, copies in model.named_parameters():
        if name.endswith("copies"):
            total += sum(p * float(copy.detach().square().sum()) / 2 for p, copy in zip(member.probs, copies))
    return total + member.indices * sum(p * math.log(p) for p in member.probs)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*_SIZES[:2]), nn.Tanh(), nn.Linear(*_SIZES[1:]))


_PLACES = ("0.weight", "0.bias", "2.weight", "2.bias")


def _same_values(member: _Member, ours: nn.Module) -> nn.Module:
    """The method of its own, with the weights of the family's."""
    ensemble = member.title == _ENSEMBLE
    other = lb.bayesianize(_net(), member.method, where=None if ensemble else lb.types(nn.Linear))
    if member.setting.zero:
        return other
    with torch.no_grad():
        for place in _PLACES:
            mine: Any = ours.get_submodule(f"{place}.posterior").copies
            # The networks of an ensemble lie one behind the other, as copies do.
            theirs: Any = other.get_parameter(f"member.{place}" if ensemble else f"{place}.posterior.copies")
            theirs.copy_(mine)
    return other


def _moments(mine: Tensor, theirs: Tensor) -> dict[str, float]:
    """The largest distances of means and deviations over all outputs, in standard errors; 0 where they are equal."""
    if mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=1e-5):
        return {"mean": 0.0, "std": 0.0}
    errors = [each.var(0) / len(each) for each in (mine, theirs)]
    spread = []
    for each in (mine, theirs):
        squares = (each - each.mean(0)).square()
        spread.append(squares.var(0) / len(each) / (4 * squares.mean(0)))
    pairs = ((mine.mean(0), theirs.mean(0), errors), (mine.std(0), theirs.std(0), spread))
    mean, std = (float(((a - b).abs() / (c[0] + c[1]).sqrt()).max()) for a, b, c in pairs)
    return {"mean": mean, "std": std}


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Distances of the moments, beside what chance allows."""
    axes = canvas.subplots()
    names = list(figure["gaps"])
    for place, (text, colour) in enumerate((("means", "#3b5bdb"), ("deviations", "#74c0fc"))):
        values = [figure["gaps"][name][place] for name in names]
        axes.bar([k + (place - 0.5) * 0.35 for k in range(len(names))], values, 0.35, color=colour, label=text)
    axes.axhline(_FAR, color="#868e96", linewidth=1)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("largest distance, standard errors")
    axes.set_title("one family draws what five methods draw")
    axes.legend(frameon=False)


register(
    Recipe(
        id="emp-family",
        title="Dropout, DropConnect, an explicit ensemble, EMP and ECMP as settings of one family",
        presets={
            "smoke": {"samples": 500, "rows": 3},
            "short": {"samples": 50_000, "rows": 5},
            "paper": {"samples": 500_000, "rows": 5},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
