"""emp-prior: functions drawn with dropout or with patched weights (Ensemble Model Patching, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_RANGE = 10.0
_SHOWN = 3
_TITLES = {"normal": "normal weights", "dropout": "dropout", "emp": "EMP", "ecmp": "ECMP"}
_COLOURS = ("#3b5bdb", "#d9480f", "#2b8a3e")


class _Step(nn.Module):
    """The sign of x."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps any tensor to one of its shape."""
        return x.sign()


def measure(run: Run) -> Outcome:
    """Draw functions and count their steps."""
    found = run.units(_functions, {name: (name,) for name in _TITLES})
    rows = [
        Row(_TITLES[name], f"steps of a function from {-_RANGE:g} to {_RANGE:g}, mean", None, [one["steps"]])
        for name, one in found.items()
    ]
    checks = []
    for name in ("emp", "ecmp"):
        gain = found[name]["steps"] - found["dropout"]["steps"]
        error = (found[name]["error"] ** 2 + found["dropout"]["error"] ** 2) ** 0.5
        text = f"{_TITLES[name]} draws more steps than dropout, by more than three standard errors"
        checks.append(
            Check(text, gain > 3 * error, f"{_TITLES[name]}: {gain:.3g} more steps, standard error {error:.2g}")
        )
    notes = [
        "one hidden layer of sign(x); B and b from N(0, 20), W and w from N(0, 5), read as variances; dropout drops "
        "weights with probability 0.5, EMP and ECMP choose one of five draws of every weight"
    ]
    return Outcome(rows, checks, {name: one["shown"] for name, one in found.items()}, notes)


def _functions(run: Run, name: str) -> dict[str, Any]:
    """Functions of networks whose weights are drawn anew for each."""
    settings = run.settings
    grid = torch.linspace(-_RANGE, _RANGE, settings["points"]).unsqueeze(1)
    steps, shown = [], []
    with SeededRandom(run.seeds[0]), torch.no_grad():
        for number in range(settings["functions"]):
            model = _network(name, settings["hidden"])
            y = lb.predict(model, grid, 1, joint=True).outputs[0, :, 0]
            steps.append(float((y.diff().abs() > 1e-4).sum()))
            if number < _SHOWN:
                shown.append(y.tolist())
    count = torch.tensor(steps)
    return {
        "steps": float(count.mean()),
        "error": float(count.std() / len(steps) ** 0.5),
        "shown": {"x": grid[:, 0].tolist(), "y": shown},
    }


def _plain(hidden: int) -> nn.Sequential:
    """A network with weights from the prior."""
    first, second = nn.Linear(1, hidden), nn.Linear(hidden, 1)
    for layer in (first, second):
        nn.init.normal_(layer.weight, 0.0, 5.0**0.5)
        nn.init.normal_(layer.bias, 0.0, 20.0**0.5)
    return nn.Sequential(first, _Step(), second)


def _network(name: str, hidden: int) -> nn.Module:
    net = _plain(hidden)
    if name == "normal":
        return net
    if name == "dropout":
        # Kept weights are divided by the share of those that are kept; drawn ones are to have the prior's size.
        for name, parameter in net.named_parameters():
            if name.endswith("weight"):
                parameter.mul_(0.5)
        return lb.bayesianize(net, lb.DropConnect(0.5))
    method = lb.EMP() if name == "emp" else lb.ECMP()
    # Every copy is a draw of its own from the prior.
    copies = [_plain(hidden).state_dict() for _ in range(method.components)]
    model = lb.bayesianize(net, method, where=lb.types(nn.Linear))
    for place in ("0.weight", "0.bias", "2.weight", "2.bias"):
        patches: Any = model.get_submodule(f"{place}.posterior")
        patches.copies.copy_(torch.stack([values[place] for values in copies]))
    return model


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """A few functions of each kind."""
    panels = canvas.subplots(1, len(figure), sharex=True, sharey=True)
    for axes, (name, lines) in zip(panels, figure.items()):
        for y, colour in zip(lines["y"], _COLOURS):
            axes.plot(lines["x"], y, color=colour, linewidth=0.8)
        axes.set_title(_TITLES[name], fontsize=9)
        axes.set_xlabel("x")


register(
    Recipe(
        id="emp-prior",
        title="Functions drawn from dropout and from patched weights",
        presets={
            "smoke": {"hidden": 100, "points": 400, "functions": 20},
            "short": {"hidden": 100, "points": 4000, "functions": 400},
            "paper": {"hidden": 100, "points": 4000, "functions": 2000},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
