"""emp-params: parameters of patched networks (Ensemble Model Patching, tables 1 and 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

import leanbayes as lb
from leanbayes.models import create
from leanbayes.nn._base import ConvertedLayer
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_COMPONENTS = 5
_COUNT = "parameters"
_ADDED = "parameters added"
_PRESET = {"components": _COMPONENTS}


def _mlp() -> nn.Module:
    """99 hidden layers of 100 units with batch norm, and an output without bias."""
    layers: list[nn.Module] = []
    for _ in range(99):
        layers += [nn.Linear(100, 100), nn.BatchNorm1d(100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, 100, bias=False))


# Plain network, the published count of it, of patched norms, and of patched norms and output.
_NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], int, int | None, int]] = {
    "ResNet-18": (lambda: create("resnet18", classes=1000, stem="imagenet"), 11_689_512, 11_727_912, 13_779_912),
    "PyramidNet-110-270": (lambda: create("pyramidnet"), 28_511_307, None, 28_825_299),
    "MLP": (_mlp, 1_009_900, None, 1_129_100),
}


def measure(run: Run) -> Outcome:
    """Count what five copies of norms, or of norms and output, add."""
    rows: list[Row] = []
    checks: list[Check] = []
    log = math.log10(run.settings["components"])
    shares: dict[str, list[float]] = {}
    for name, (make, plain, norms, both) in _NETWORKS.items():
        found = run.unit(name, lambda make=make: _counts(make, run.settings["components"]))
        # The printed totals of the MLP leave out its norms' own parameters, so that only what is added compares.
        exact = name != "MLP"
        rows.append(Row(name, _COUNT, plain, [found["plain"]]))
        for kind, title, printed in (("norms", "norms", norms), ("both", "norms and output", both)):
            rows.append(Row(f"{name}, {title}", _COUNT, printed, [found[kind]]))
            if printed is not None:
                added, wanted = found[kind] - found["plain"], printed - plain
                rows.append(Row(f"{name}, {title}", _ADDED, wanted, [added]))
                checks.append(_equal(f"{name}, {title}: parameters added", added, wanted))
                if exact:
                    checks.append(_equal(f"{name}, {title}: parameters", found[kind], printed))
        rows.append(Row(f"{name}, explicit ensemble", _COUNT, _COMPONENTS * plain, [found["ensemble"]]))
        # Every patched layer, or every patched parameter, chooses on its own.
        for title, key, printed in (("EMP", "layers", "K^L"), ("ECMP", "elements", "K^(H^2 + L H)")):
            text = f"{name}, {title} on norms and output"
            rows.append(Row(text, "effective ensemble size, log10", f"O({printed})", [found[key] * log]))
        rows.append(Row(f"{name}, explicit ensemble", "effective ensemble size, log10", "O(K)", [log]))
        shares[name] = [found[kind] / found["plain"] - 1 for kind in ("norms", "both", "ensemble")]
    notes = ["the published totals of the MLP leave out the 19,800 parameters of its own norms, on both sides"]
    return Outcome(rows, checks, {"shares": shares}, notes)


def _counts(make: Callable[[], nn.Module], components: int) -> dict[str, int]:
    def count(model: nn.Module) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    plain = count(make())
    method = lb.EMP(components)
    both = lb.bayesianize(make(), method)
    patched = [parameter for name, parameter in both.named_parameters() if name.endswith("copies")]
    return {
        "plain": plain,
        "norms": count(lb.bayesianize(make(), method, where=lb.norms())),
        "both": count(both),
        "ensemble": components * plain,
        "layers": sum(isinstance(module, ConvertedLayer) for module in both.modules()),
        "elements": sum(parameter.numel() for parameter in patched) // components,
    }


def _equal(text: str, value: int, wanted: int) -> Check:
    return Check(f"{text}: {wanted:,}", value == wanted, f"{text}: {value:,}, {value - wanted:+,}")


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """What each way of patching adds."""
    axes = canvas.subplots()
    titles = ("norms", "norms and output", "explicit ensemble")
    width = 0.25
    for place, (title, colour) in enumerate(zip(titles, ("#74c0fc", "#3b5bdb", "#868e96"))):
        values = [100 * share[place] for share in figure["shares"].values()]
        bars = axes.bar([k + (place - 1) * width for k in range(len(values))], values, width, color=colour, label=title)
        axes.bar_label(bars, fmt="%.3g %%", fontsize=7)
    axes.set_yscale("log")
    axes.set_ylim(top=6000)
    axes.set_xticks(range(len(figure["shares"])), list(figure["shares"]))
    axes.set_ylabel("parameters added, %")
    axes.set_title("patches add little, an ensemble four networks")
    axes.legend(frameon=False, loc="upper center", ncols=3)


register(
    Recipe(
        id="emp-params",
        title="Parameters that five copies of norms and output add",
        presets={"smoke": _PRESET, "short": _PRESET, "paper": _PRESET},
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
