"""kt-heatmap: standard deviations beside their approximations of rank 1 and 2 (k-tied Normal, figures 4 and 11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.recipes import _kt_posthoc as posthoc
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

# The published pictures are of the CNN and of the ResNet.
_LAYERS = {"mlp": ("dense1",), "cnn": ("dense1",), "resnet": ("block3.conv2", "block4.conv2")}
_RANKS = (1, 2)
# Correlation with the original from which on a picture is taken to look like it.
_ALIKE = 0.9
# At most so many inputs and outputs are drawn, evenly spread.
_INPUTS, _OUTPUTS = 60, 80


def measure(run: Run) -> Outcome:
    """Approximate standard deviations of the networks of `kt-posthoc`."""
    models = [model for model in _LAYERS if model in run.settings["models"]]
    seed = run.seeds[0]
    done = run.units(_pictures, {f"{model}-seed{seed}": (model, seed) for model in models})
    rows: list[Row] = []
    checks: list[Check] = posthoc.all_there(run, _LAYERS)
    pictures = {}
    for model in models:
        for layer, one in done[f"{model}-seed{seed}"].items():
            name = f"{kt.MODELS[model].title}, {layer}"
            pictures[name] = one["picture"]
            first, second = one["correlations"]
            for rank, value in zip(_RANKS, one["correlations"]):
                rows.append(Row(name, f"correlation of rank {rank} with the original", None, [value]))
            checks.append(at_least(f"{name}: correlation of rank 2 with the original", [second], _ALIKE))
            text = f"{name}: rank 2 nearer to the original than rank 1"
            checks.append(Check(text, second > first, f"{name}: {second:.4f} at rank 2, {first:.4f} at rank 1"))
    notes = [
        f"the networks of kt-posthoc, seed {seed}; drawn are at most {_INPUTS} inputs by {_OUTPUTS} outputs, evenly "
        "spread",
    ]
    return Outcome(rows, checks, {"pictures": pictures}, notes)


def _pictures(run: Run, model: str, seed: int) -> dict[str, Any]:
    trained, _ = posthoc.mean_field(run, model, seed)
    found = kt.deviations(trained, _LAYERS[model])
    return {name: _picture(std.cpu().double().mT) for name, std in found.items()}


def _picture(std: Tensor) -> dict[str, Any]:
    """Correlations of approximations with a matrix ``[in, out]``, and a part of it with its first two factors."""
    left, values, right = torch.linalg.svd(std, full_matrices=False)
    inputs, outputs = left[:, : _RANKS[-1]] * values[: _RANKS[-1]], right[: _RANKS[-1]].mT
    approximations = [(inputs[:, :rank] @ outputs[:, :rank].mT).clamp_min(0) for rank in _RANKS]
    rows, columns = _spread(std.shape[0], _INPUTS), _spread(std.shape[1], _OUTPUTS)
    return {
        "correlations": [_correlation(one, std) for one in approximations],
        "picture": {
            "std": _short(std[rows][:, columns]),
            "inputs": _short(inputs[rows]),
            "outputs": _short(outputs[columns]),
        },
    }


def _correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def _spread(size: int, most: int) -> Tensor:
    return torch.linspace(0, size - 1, min(size, most)).round().long()


def _short(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """A row of pictures for each kernel: as trained, and at rank 1 and 2."""
    grid = canvas.subplots(len(figure["pictures"]), 1 + len(_RANKS), squeeze=False)
    for line, (name, one) in zip(grid, figure["pictures"].items()):
        std, inputs, outputs = (torch.tensor(one[key]) for key in ("std", "inputs", "outputs"))
        shown = [std, *((inputs[:, :rank] @ outputs[:, :rank].mT).clamp_min(0) for rank in _RANKS)]
        images = [
            axes.imshow(values.numpy(), vmin=0, vmax=float(std.max()), aspect="auto", interpolation="nearest")
            for axes, values in zip(line, shown)
        ]
        for axes in line:
            axes.set_xticks([])
            axes.set_yticks([])
        line[0].set_ylabel(name.replace(", ", "\n"), fontsize=7)
        canvas.colorbar(images[0], ax=list(line), pad=0.01).ax.tick_params(labelsize=7)
    for axes, title in zip(grid[0], ("as trained", *(f"rank {rank}" for rank in _RANKS))):
        axes.set_title(title, fontsize=9)


register(
    Recipe(
        id="kt-heatmap",
        title="Trained standard deviations beside their approximations of rank 1 and 2",
        presets=posthoc.PRESETS,
        seeds=posthoc.SEEDS,
        measure=measure,
        draw=draw,
    )
)
