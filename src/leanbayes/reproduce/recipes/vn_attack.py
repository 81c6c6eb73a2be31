"""vn-attack: targeted fast-sign attacks on averaged predictions of five kinds of networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.analysis import attack_curve
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._vgg import DROPOUT_IS_DRAWN, schedule, trained_vgg
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_MEMBERS = 5
_SAMPLES = 10
_KINDS = ("vgg-dropout", "vgg-log-uniform")


class Members(nn.Module):
    """Networks whose predicted probabilities are averaged, each with a draw of its own.

    Shape:
        ``[B, ...]`` to log probabilities ``[B, classes]``.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean probability."""
        scores = torch.stack([network(x).log_softmax(-1) for network in self.networks])
        return scores.logsumexp(0) - math.log(len(self.networks))


def measure(run: Run) -> Outcome:
    """Train five dropout and five variance networks and attack them alone and together."""
    members = range(run.settings["members"])
    run.units(_trained, {f"{kind}-member{seed}": (kind, seed) for kind in _KINDS for seed in members})
    found = run.unit("attack", lambda: _attack(run))
    last = run.settings["steps"]
    rows = []
    for name, curve in found.items():
        rows.append(Row(name, "accuracy before the attack, %", None, [100 * curve["accuracy"]]))
        rows.append(Row(name, f"successful attacks after {last} steps, %", None, [100 * curve["success"][-1]]))
        rows.append(Row(name, f"successful attacks, mean over {last} steps, %", None, [_mean_success(curve)]))
        rows.append(Row(name, "entropy before, nats", None, [curve["entropy"][0]]))
        rows.append(Row(name, "entropy after, nats", None, [curve["entropy"][-1]]))
    pairs = [("variance", "deterministic"), ("variance", "dropout"), ("variance ensemble", "deep ensemble")]
    checks = [_resists(found, a, b) for a, b in pairs] + [_hesitates(found, a, b) for a, b in pairs]
    notes = [
        f"{run.settings['images']} test images, each with a random wrong class as target; steps of 0.5 on pixels 0-255",
        f"{_SAMPLES} samples in all, also of the variance ensemble; ensembles of {_MEMBERS} networks, {schedule(run)}",
        "the deterministic network is the dropout network with dropout off, and the deep ensemble five of these",
        DROPOUT_IS_DRAWN,
    ]
    return Outcome(rows, checks, found, notes)


def _trained(run: Run, kind: str, seed: int) -> float:
    """Train one network, so that it is there for the attack; returns what it ended with."""
    return trained_vgg(run, kind, seed, *vn.cifar10(run))[1][-1]["nll"]


def _attack(run: Run) -> dict[str, Any]:
    train, test = vn.cifar10(run)
    dropout, variance = (
        [trained_vgg(run, kind, seed, train, test)[0].eval() for seed in range(run.settings["members"])]
        for kind in _KINDS
    )
    device = next(dropout[0].parameters()).device
    count = run.settings["images"]
    x, y = test[0][:count].to(device), test[1][:count].to(device)
    classes = int(test[1].max()) + 1
    shift = torch.randint(1, classes, (len(y),), generator=torch.Generator().manual_seed(run.seeds[0])).to(device)
    target = (y + shift) % classes
    means = [lb.point_estimate(copy.deepcopy(network)) for network in dropout]
    # Each with as many draws in all, where there is something to draw.
    networks = {
        "deterministic": (means[0], 1),
        "dropout": (dropout[0], _SAMPLES),
        "deep ensemble": (Members(means), 1),
        "variance": (variance[0], _SAMPLES),
        "variance ensemble": (Members(variance), max(1, _SAMPLES // len(variance))),
    }
    steps = run.settings["steps"]
    found = {}
    for name, (network, samples) in networks.items():
        curve = attack_curve(network, x, target, steps=steps, samples=samples, seed=run.seeds[0]).to_dict()
        clean = torch.cat([lb.predict(network, part, samples, seed=0).label for part in x.split(256)])
        found[name] = {"accuracy": float((clean == y).float().mean())} | {
            key: curve[key] for key in ("success", "entropy")
        }
    return found


def _mean_success(curve: Mapping[str, Any]) -> float:
    return 100 * sum(curve["success"][1:]) / (len(curve["success"]) - 1)


def _resists(found: Mapping[str, Any], one: str, other: str) -> Check:
    a, b = _mean_success(found[one]), _mean_success(found[other])
    return Check(
        f"{one} resists longer than {other}", a < b, f"{one} falls to {a:.1f} % of the attacks, {other} to {b:.1f} %"
    )


def _hesitates(found: Mapping[str, Any], one: str, other: str) -> Check:
    a, b = (sum(found[name]["entropy"][1:]) / (len(found[name]["entropy"]) - 1) for name in (one, other))
    return Check(
        f"{one} has more entropy on attacked images than {other}", a > b, f"{one} has {a:.2f} nats, {other} {b:.2f}"
    )


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Success rate and entropy against the steps."""
    left, right = canvas.subplots(1, 2)
    for name, curve in figure.items():
        left.plot([100 * value for value in curve["success"]], label=name)
        right.plot(curve["entropy"], label=name)
    left.set(xlabel="steps of the attack", ylabel="successful attacks, %")
    right.set(xlabel="steps of the attack", ylabel="entropy of the prediction, nats")
    left.legend(fontsize="small")


_EXTRA = {
    "smoke": {"members": 2, "images": 6, "steps": 2},
    "short": {"members": _MEMBERS, "images": 500, "steps": 20, "epochs": 60, "alpha_lr": 5e-3},
    "paper": {"members": _MEMBERS, "images": 10000, "steps": 60},
}
register(
    Recipe(
        id="vn-attack",
        title="Iterative fast-sign attacks on deterministic, dropout, ensemble and variance networks",
        presets={name: values | _EXTRA[name] for name, values in vn.CIFAR_PRESETS.items()},
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
