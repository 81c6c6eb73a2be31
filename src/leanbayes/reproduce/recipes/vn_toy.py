"""vn-toy: four classes in the plane through a bottleneck of two variance neurons (Variance Networks, fig. 1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig

CENTRES = ((3.0, 3.0), (3.0, 10.0), (10.0, 3.0), (10.0, 10.0))
BOTTLENECK = "dense5"
SAME, DIFFERENT = "both neurons carry the same", "the neurons carry different things"
TICKS = (-1000, -10, 0, 10, 1000)
COLOURS = ("#3b5bdb", "#d9480f", "#2b8a3e", "#862e9c")
_GOOD = 98.0
_SILENT = 0.1
# The correlations of the two neurons' levels over the classes that training finds are above or well below.
_REPEATS = 0.9


def measure(run: Run) -> Outcome:
    """One network per seed: how well it does, and which of the two kinds of code its bottleneck found."""
    found = run.each_seed(_network)
    good = {kind: [n for n in found if n["kind"] == kind and n["averaged"] > _GOOD] for kind in (SAME, DIFFERENT)}
    rows = [
        Row("all networks", "accuracy of 100 samples, %", "near perfect", [n["averaged"] for n in found]),
        Row("all networks", "accuracy of one sample, %", None, [n["one"] for n in found]),
        Row("all networks", "accuracy of the mean weights, %", None, [n["mean"] for n in found]),
    ]
    for kind, networks in good.items():
        rows.append(Row(kind, "accuracy of 100 samples, %", "near perfect", [n["averaged"] for n in networks]))
    share = sum(map(len, good.values())) / len(found)
    checks = [_half(share)] + [_found(kind, networks, len(found)) for kind, networks in good.items()]
    best = {n["kind"]: n for n in sorted(found, key=lambda n: n["averaged"])}
    figure = {kind: {"points": best[kind]["points"], "classes": best[kind]["classes"]} for kind in good if kind in best}
    silent = sum(_silent_classes(network) > 1 for network in found)
    notes = [
        f"the paper leaves the width of the other hidden layers open; here it is {run.settings['width']}",
        "width, learning rate and initialisation were chosen after trying some fifteen settings",
        f"{silent} of {len(found)} networks give more than one class no variance at all and cannot tell these apart",
    ]
    return Outcome(rows, checks, figure, notes)


def make_data(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around the four centres with unit covariance; the classes take turns. ``[N, 2]`` and ``[N]``."""
    y = torch.arange(examples) % len(CENTRES)
    noise = torch.randn(examples, 2, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(CENTRES)[y] + noise, y


def build(width: int) -> nn.Module:
    """Six dense layers with ReLUs, the fifth a variance layer with two outputs, from torch's own first weights."""
    layers: dict[str, nn.Module] = {}
    features = 2
    for number in range(1, 5):
        layers |= {f"dense{number}": nn.Linear(features, width), f"relu{number}": nn.ReLU()}
        features = width
    # An offset of the bottleneck would carry nothing about the input.
    layers |= {BOTTLENECK: nn.Linear(width, 2, bias=False), "relu5": nn.ReLU(), "output": nn.Linear(2, len(CENTRES))}
    return lb.bayesianize(
        nn.Sequential(OrderedDict(layers)), lb.VarianceLayer(estimator="local"), where=lb.named(BOTTLENECK)
    )


def _network(run: Run, seed: int) -> dict[str, Any]:
    """Train one network and look at its bottleneck."""
    settings = run.settings
    config = TrainConfig(
        epochs=settings["epochs"], batch_size=100, lr=settings["lr"], schedule="linear", samples=settings["samples"],
        checkpoint_every=settings["epochs"], log_every=10_000,
    )  # fmt: skip
    data = make_data(settings["examples"], seed=0)
    net, _ = run.trained("toy", seed, lambda: build(settings["width"]), data, config)
    x, y = (t.to(run.device) for t in make_data(settings["examples"], seed=1))
    prediction = lb.predict(net, x, samples=100, seed=0)
    with lb.sampling(mean=True):
        at_mean = lb.predict(net, x, samples=1).label
    levels = _levels(net, x, y)
    correlation = float(torch.corrcoef(levels.T)[0, 1])
    return {
        "averaged": _percent(prediction.label == y),
        "one": _percent(prediction.outputs.argmax(-1) == y),
        "mean": _percent(at_mean == y),
        "levels": levels.tolist(),
        "correlation": correlation,
        "kind": SAME if correlation > _REPEATS else DIFFERENT,
        "points": _activations(net, x[: settings["shown"]]),
        "classes": y[: settings["shown"]].tolist(),
    }


@torch.no_grad()
def _levels(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """How loud each neuron is for each class, ``[classes, 2]``: log(1 + deviation), in units of the logits it moves."""
    features = _up_to(net, BOTTLENECK, x)
    variance = features.square() @ net.dense5.weight.posterior.std().square().T  # [B, 2]
    reach = net.output.weight.amax(0) - net.output.weight.amin(0)  # [2]
    loudness = (variance.sqrt() * reach).log1p()
    return torch.stack([loudness[y == number].mean(0) for number in range(len(CENTRES))])


@torch.no_grad()
def _activations(net: Any, x: Tensor) -> list[list[float]]:
    """One draw of the bottleneck's two outputs for each point."""
    with lb.sampling(seed=0):
        return net.dense5(_up_to(net, BOTTLENECK, x)).tolist()


def _up_to(net: Any, layer: str, x: Tensor) -> Tensor:
    """What a layer is given."""
    return net[: [name for name, _ in net.named_children()].index(layer)](x)


def _percent(right: Tensor) -> float:
    return 100 * right.double().mean().item()


def _silent_classes(network: dict[str, Any]) -> int:
    """How many classes move neither neuron."""
    return sum(max(levels) < _SILENT for levels in network["levels"])


def _half(share: float) -> Check:
    text = "at least half of the networks exceed 98% with 100-sample averaging"
    return Check(text, share >= 0.5, f"{share:.0%} of the networks exceed 98%")


def _found(kind: str, networks: list[dict[str, Any]], count: int) -> Check:
    gap = f"none of {count} networks above 98% has a code in which {kind}"
    return Check(f"a code in which {kind} is found, with more than 98%", bool(networks), gap)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Draws of the bottleneck by class, one panel for each kind of code."""
    panels = canvas.subplots(1, len(figure), squeeze=False)[0]
    for axes, (kind, found) in zip(panels, figure.items()):
        for number, colour in enumerate(COLOURS):
            points = [p for p, label in zip(found["points"], found["classes"]) if label == number]
            axes.scatter(*zip(*points), s=6, color=colour, label=f"class {number + 1}")
        # Deviations of the classes differ by orders of magnitude.
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set(xticks=TICKS, yticks=TICKS)
        axes.set(title=kind, xlabel="neuron 1", ylabel="neuron 2")
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))


register(
    Recipe(
        id="vn-toy",
        title="Four classes in the plane through a bottleneck of two variance neurons",
        presets={
            "smoke": {"epochs": 3, "examples": 200, "width": 16, "lr": 3e-3, "samples": 1, "shown": 100},
            "short": {"epochs": 150, "examples": 1000, "width": 64, "lr": 3e-3, "samples": 2, "shown": 600},
            "paper": {"epochs": 300, "examples": 1000, "width": 64, "lr": 3e-3, "samples": 2, "shown": 600},
        },
        seeds={"smoke": (0,), "short": tuple(range(32)), "paper": tuple(range(100))},
        measure=measure,
        draw=draw,
    )
)
