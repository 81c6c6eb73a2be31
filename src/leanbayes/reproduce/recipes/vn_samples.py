"""vn-samples: single draws of a variance network predict well, their average far better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import leanbayes as lb
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run


def measure(run: Run) -> Outcome:
    """Accuracies of single draws, each one network for all test images, and of the average of all of them."""
    ones = run.each_seed(_one)
    count = run.settings["draws"]
    rows = [
        Row("single draws", "mean accuracy, %", None, [sum(one["draws"]) / len(one["draws"]) for one in ones]),
        Row("single draws", "best accuracy, %", None, [max(one["draws"]) for one in ones]),
        Row(f"average of {count}", "accuracy, %", None, [one["averaged"] for one in ones]),
    ]
    gaps = [one["averaged"] - max(one["draws"]) for one in ones]
    text = f"the average of {count} draws is above every single one"
    check = Check(text, min(gaps) > 0, f"the best draw is {-min(gaps):.2f} points above the average")
    return Outcome(rows, [check], {"draws": ones[0]["draws"], "averaged": [one["averaged"] for one in ones]})


def _one(run: Run, seed: int) -> dict[str, Any]:
    train, test = vn.mnist(run)
    model, _ = vn.train_lenet(run, "mnist-all-layers", seed, train)
    device = next(model.parameters()).device
    x, y = test[0].to(device), test[1].to(device)
    total = torch.zeros(len(y), 10, device=device)
    draws = []
    for draw in range(run.settings["draws"]):
        # The same weights for all images: one seed, one function.
        probs = torch.cat([lb.predict(model, part, 1, seed=draw, joint=True).probs for part in x.split(2000)])
        total += probs
        draws.append(100 * float((probs.argmax(1) == y).float().mean()))
    return {"draws": draws, "averaged": 100 * float((total.argmax(1) == y).float().mean())}


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Two histograms."""
    axes = canvas.subplots()
    axes.hist(figure["draws"], bins=30, label="single draws of one network")
    for value in figure["averaged"]:
        axes.axvline(value, color="C3", label="average over the draws, one line per network")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    axes.legend(unique.values(), unique.keys(), loc="upper left")
    axes.set(xlabel="test accuracy, %", ylabel="draws", title="Variance LeNet-5 on MNIST")


register(
    Recipe(
        id="vn-samples",
        title="Accuracy of single draws of a variance LeNet-5 and of their average",
        presets={name: values | {"draws": 20 if name == "smoke" else 200} for name, values in vn.MNIST_PRESETS.items()},
        seeds=vn.SEEDS,
        measure=measure,
        draw=draw,
    )
)
