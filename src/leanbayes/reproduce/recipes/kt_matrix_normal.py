"""kt-matrix-normal: what the k-tied Normal has in common with the matrix normal (k-tied Normal, appendix A)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_SHAPE = (6, 9)
_INTERACTION = "log standard deviations, less row and column parts, largest"


def measure(run: Run) -> Outcome:
    """Compare densities at rank 1, and measure how far the nearest matrix normal is at every rank."""
    rows: list[Row] = []
    found: dict[int, list[dict[str, float]]] = {}
    for rank in run.settings["ranks"]:
        found[rank] = [
            run.unit(f"rank{rank}-seed{seed}", lambda rank=rank, seed=seed: _compare(run, rank, seed))
            for seed in run.seeds
        ]
        name = f"{rank}-tied Normal"
        rows.append(Row(name, "KL from the nearest matrix normal, nats", None, [one["kl"] for one in found[rank]]))
        rows.append(
            Row(
                name,
                "log standard deviations, less row and column parts, largest",
                None,
                [one["interaction"] for one in found[rank]],
            )
        )
    same = [one["density"] for one in found[1]]
    rows.append(Row("1-tied Normal", "distance of log densities from the matrix normal's", 0.0, same))
    checks = [
        at_most("rank 1: distance of log densities", same, 1e-9, " nats"),
        at_most("rank 1: KL from the nearest matrix normal", [one["kl"] for one in found[1]], 1e-9, " nats"),
    ]
    for rank in run.settings["ranks"][1:]:
        least = min(one["kl"] for one in found[rank])
        checks.append(at_least(f"rank {rank}: KL from the nearest matrix normal, smallest", [least], 1e-3, " nats"))
    notes = [
        f"a weight of {_SHAPE[0]} x {_SHAPE[1]}; the nearest matrix normal, with full row and column covariances, is "
        "found by alternating exact minimisation of the KL"
    ]
    curve = {"ranks": list(found), "kl": [[one["kl"] for one in ones] for ones in found.values()]}
    return Outcome(rows, checks, curve, notes)


def _compare(run: Run, rank: int, seed: int) -> dict[str, float]:
    with SeededRandom(seed):
        layer = nn.Linear(_SHAPE[1], _SHAPE[0]).double()
        posterior: Any = lb.bayesianize(layer, lb.KTied(rank)).get_submodule("weight.posterior")
        with torch.no_grad():
            posterior.log_u.normal_()
            posterior.log_v.normal_()
        points = torch.randn(20, *_SHAPE, dtype=torch.float64)
        std, mean = posterior.scale().detach(), posterior.mean().detach()
        density = math.nan
        if rank == 1:
            u, v = (factor.detach().exp().flatten() for factor in (posterior.log_u, posterior.log_v))
            ours = torch.distributions.Normal(mean, std).log_prob(points).sum((1, 2))
            density = float((ours - _matrix_normal(points - mean, u.square().diag(), v.square().diag())).abs().max())
        return {"density": density, "kl": _nearest(std, run.settings["sweeps"]), "interaction": _interaction(std)}


def _matrix_normal(deviation: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Log density of a matrix normal with covariances of rows ``[m, m]`` and columns ``[n, n]``."""
    m, n = deviation.shape[-2:]
    inner = torch.linalg.solve(rows, deviation)  # [.., m, n]
    outer = torch.linalg.solve(columns, deviation.mT)  # [.., n, m]
    squares = (inner * outer.mT).sum((-2, -1))
    return -0.5 * (squares + m * n * math.log(2 * math.pi) + n * rows.logdet() + m * columns.logdet())


def _nearest(std: Tensor, sweeps: int) -> float:
    """The smallest KL of N(0, diag(std^2)) from a matrix normal.

    Where one covariance is given the best other one is ``E[X V^-1 X^T] / n``, and the same with rows and columns
    exchanged. For independent elements that is a diagonal matrix, whatever the given one is.
    """
    m, n = std.shape
    variance = std.square()
    start = torch.randn(n, n, dtype=std.dtype)
    columns = start @ start.mT + torch.eye(n, dtype=std.dtype)
    rows = torch.eye(m, dtype=std.dtype)
    for _ in range(sweeps):
        rows = (variance @ columns.inverse().diagonal() / n).diag()
        columns = (variance.mT @ rows.inverse().diagonal() / m).diag()
    a, b = rows.diagonal(), columns.diagonal()
    ratio = variance / torch.outer(a, b)
    return float(0.5 * (ratio - 1 - ratio.log()).sum())


def _interaction(std: Tensor) -> float:
    """How far logs of standard deviations are from a sum of a row and a column part, which a matrix normal has."""
    logs = std.log()
    centred = logs - logs.mean(0) - logs.mean(1, keepdim=True) + logs.mean()
    return float(centred.abs().max())


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Distance from the nearest matrix normal."""
    axes = canvas.subplots()
    for rank, values in zip(figure["ranks"], figure["kl"]):
        axes.scatter([rank] * len(values), values, s=14, color="#0b7285")
    axes.set_yscale("symlog", linthresh=1e-6)
    axes.set_xticks(figure["ranks"])
    axes.set_xlabel("rank k")
    axes.set_ylabel("KL from the nearest matrix normal, nats")
    axes.set_title("rank 1 is a matrix normal, rank 2 is none")


register(
    Recipe(
        id="kt-matrix-normal",
        title="Rank 1 is the matrix normal with diagonal factors, rank 2 is not",
        presets={
            "smoke": {"ranks": (1, 2), "sweeps": 20},
            "short": {"ranks": (1, 2, 3, 4), "sweeps": 200},
            "paper": {"ranks": (1, 2, 3, 4), "sweeps": 200},
        },
        seeds={"smoke": (0,), "short": tuple(range(10)), "paper": tuple(range(10))},
        measure=measure,
        draw=draw,
    )
)
