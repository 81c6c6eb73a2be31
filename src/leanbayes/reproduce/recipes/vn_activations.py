"""vn-activations: what a variance layer sends on, by class: energy levels instead of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import leanbayes as lb
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_NEURONS = 4
_BINS = 60


def measure(run: Run) -> Outcome:
    """Densities of the activations of some neurons of the zero-mean layer, by class."""
    ones = run.each_seed(_one)
    rows = [
        Row(
            "largest over smallest scale of a neuron's activations",
            "median over neurons",
            None,
            [one["ratio"] for one in ones],
        ),
        Row(
            "mean of a neuron's activations over their standard deviation",
            "median over neurons and classes",
            0.0,
            [one["bias"] for one in ones],
        ),
    ]
    ratio = min(one["ratio"] for one in ones)
    levels = Check(
        "classes have distinct energy levels: scales differ at least twofold", ratio >= 2, f"only {ratio:.2f}-fold"
    )
    return Outcome(rows, [levels], ones[0]["figure"], ["activations before the batch normalisation, less the bias"])


def _one(run: Run, seed: int) -> dict[str, Any]:
    train, test = vn.mnist(run)
    model, _ = vn.train_lenet(run, "mnist-zero-mean", seed, train)
    values, y = _activations(model.eval(), test)
    classes = sorted(set(y.tolist()))
    std = torch.stack([values[y == c].std(0) for c in classes])  # [classes, neurons]
    mean = torch.stack([values[y == c].mean(0) for c in classes])
    ratios = std.max(0).values / std.min(0).values.clamp_min(1e-9)
    shown = ratios.argsort(descending=True)[:_NEURONS].tolist()
    figure = {str(neuron): _densities(values[:, neuron], y, classes) for neuron in shown}
    return {
        "ratio": float(ratios.median()),
        "bias": float((mean.abs() / std.clamp_min(1e-9)).median()),
        "figure": figure,
    }


@torch.no_grad()
def _activations(model: Any, test: vn.Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs ``[N, 500]`` of dense1 without its bias, one draw per image."""
    kept = []
    handle = model.dense1.register_forward_hook(lambda layer, args, output: kept.append((output - layer.bias).cpu()))
    device = next(model.parameters()).device
    try:
        with lb.sampling(seed=0):
            for x in test[0].split(1000):
                model(x.to(device))
    finally:
        handle.remove()
    return torch.cat(kept), test[1]


def _densities(values: torch.Tensor, y: torch.Tensor, classes: list[int]) -> dict[str, Any]:
    limit = 3 * float(values.std())
    edges = torch.linspace(-limit, limit, _BINS + 1)
    curves = {}
    for c in classes:
        counts = torch.histc(values[y == c].float(), _BINS, -limit, limit)
        curves[str(c)] = (counts / counts.sum() / (edges[1] - edges[0])).tolist()
    return {"centres": ((edges[1:] + edges[:-1]) / 2).tolist(), "curves": curves}


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """One panel per neuron, one line per class."""
    panels = canvas.subplots(1, len(figure), squeeze=False)[0]
    for axes, (neuron, data) in zip(panels, figure.items()):
        for number, (label, curve) in enumerate(data["curves"].items()):
            axes.plot(data["centres"], curve, color=f"C{number}", label=label, linewidth=1)
        axes.set(title=f"neuron {neuron}", yscale="log", ylim=(2e-2, None), xlabel="activation")
    panels[0].set_ylabel("density")
    panels[-1].legend(title="class", fontsize="x-small")


register(
    Recipe(
        id="vn-activations",
        title="Densities of the activations of a variance layer, by class",
        presets=vn.MNIST_PRESETS,
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
