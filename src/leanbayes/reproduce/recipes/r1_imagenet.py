"""r1-imagenet: rank-1 ResNet-50 on ImageNet or any tree of image folders, and its size (Rank-1 BNNs, table 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from leanbayes import corruptions
from leanbayes._sampling import SeededRandom
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_imagenet as imagenet
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.recipes._r1_training import Training, build, train
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run
from leanbayes.training.seeds import derive

# NLL, accuracy in percent and ECE, of clean and of corrupted images.
_PUBLISHED = {
    "deterministic": ((0.943, 76.1, 0.0392), (3.20, 40.5, 0.105)),
    "batchensemble": ((0.951, 76.5, 0.0532), (3.23, 41.4, 0.120)),
    "normal": ((0.886, 77.3, 0.0166), (2.95, 42.9, 0.054)),
    "cauchy": ((0.897, 77.2, 0.0192), (2.98, 42.5, 0.059)),
}
_FAMILIES = {"deterministic": "plain", "batchensemble": "delta", "normal": "normal", "cauchy": "cauchy"}
# By count: K = 4, factors on every convolution and dense layer, shared biases and norms.
_COUNTS = {
    ("resnet50", "plain"): 25_557_032,
    ("resnet50", "delta"): 25_765_588,
    ("resnet50", "normal"): 25_974_144,
    ("wide_resnet", "plain"): 36_479_194,
    ("wide_resnet", "delta"): 36_557_518,
    ("wide_resnet", "normal"): 36_635_842,
}
_NETWORKS = {"resnet50": ("ResNet-50", 1000), "wide_resnet": ("WRN-28-10", 10)}
_METHODS = {"plain": "deterministic", "delta": "BatchEnsemble", "normal": "rank-1 Gaussian"}
_COMMON = {
    "lr": 0.1, "l2": 1e-4, "components": 4, "random_sign": 0.75, "prior_std": 0.05, "clip": 10.0, "cauchy_draws": 4,
    "anneal": 0.667,
}  # fmt: skip
# 135 epochs of 90 with annealing, signs of probability 0.75 and a prior N(1, 0.05^2), from the authors' code.
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "epochs": 1, "batch_size": 20, "size": 16, "severities": (3,), "corruptions": ("contrast",), "fast": False,
        "network": "resnet18", **_COMMON, "components": 2, "cauchy_draws": 1,
    },
    "short": {
        "epochs": 20, "batch_size": 256, "size": 64, "severities": (1, 2, 3, 4, 5), "corruptions": (), "fast": True,
        "network": "resnet50", **_COMMON,
    },
    "paper": {
        "epochs": 135, "batch_size": 256, "size": 224, "severities": (1, 2, 3, 4, 5), "corruptions": (), "fast": True,
        "network": "resnet50", **_COMMON,
    },
}  # fmt: skip


def measure(run: Run) -> Outcome:
    """Count parameters, train the networks and compare their predictions of clean and corrupted images."""
    rows, checks = counts(run)
    imagenet.images(run)  # what it says of the data stands first
    found = run.each_seed_of(scores, _PUBLISHED)
    for name, (clean, corrupted) in _PUBLISHED.items():
        for place, values in (("clean", clean), ("corrupted", corrupted)):
            title = r1.TITLES[name] + ("" if place == "clean" else ", corrupted")
            rows += Row.by_metric(title, r1.METRICS, [one[place] for one in found[name]], values)
    for other in ("deterministic", "batchensemble"):
        gain = [a["clean"]["nll"] - b["clean"]["nll"] for a, b in zip(found["normal"], found[other])]
        checks.append(at_most(f"{r1.TITLES['normal']}: NLL less that of {r1.TITLES[other]}", gain, 0.0))
    s = run.settings
    note = (
        f"{s['network']}, {s['epochs']} epochs of batches of {s['batch_size']} at {s['size']} x {s['size']} "
        "(published: ResNet-50, 135 at 224 x 224); crops from a border instead of random sizes"
    )
    figure = {name: {place: ones[0][place]["nll"] for place in ("clean", "corrupted")} for name, ones in found.items()}
    return Outcome(rows, checks, figure, [note])


def counts(run: Run) -> tuple[list[Row], list[Check]]:
    """Parameters of the published networks, which must be exact."""
    rows, checks = [], []
    for (network, family), expected in _COUNTS.items():
        title, classes = _NETWORKS[network]
        name = f"{title}, {_METHODS[family]}"
        count = run.unit(f"count-{network}-{family}", lambda n=network, f=family, c=classes: _count(n, f, c))
        rows.append(Row(name, "parameters by count", expected, [count]))
        checks.append(Check(f"{name}: {expected:,} parameters", count == expected, f"{name}: {count:,} parameters"))
    return rows, checks


def _count(network: str, family: str, classes: int) -> int:
    net = build(Training(family=family, network=network, components=4), classes)
    return sum(parameter.numel() for parameter in net.parameters())


def scores(run: Run, name: str, seed: int) -> dict[str, Any]:
    """How a residual network predicts clean and corrupted test images."""
    s, data = run.settings, imagenet.images(run)
    names = ("network", "epochs", "batch_size", "lr", "l2", "components", "random_sign", "prior_std", "clip", "anneal")
    t = Training(family=_FAMILIES[name], **{each: s[each] for each in names})
    model, _ = train(run, t, seed, data)
    draws = s["cauchy_draws"] if name == "cauchy" else 1
    predict = emp.Predictor(run, model, t.components * draws)

    def quality(change: Callable[[Tensor, int], Tensor], purpose: str) -> dict[str, float]:
        with SeededRandom(derive(seed, purpose)):
            probs = [
                imagenet.probabilities(predict, data, change(x, number))
                for number, (x, _) in enumerate(imagenet.batches(data))
            ]
        return r1.quality(torch.cat(probs).cpu(), data.test.y)

    shifted = [
        quality(lambda x, n, k=kind, v=level: imagenet.corrupted(run, x, k, v, n), f"{kind}{level}")
        for kind in s["corruptions"] or corruptions.NAMES
        for level in s["severities"]
    ]
    return {
        "clean": quality(lambda x, number: x, "clean"),
        "corrupted": {key: fmean(one[key] for one in shifted) for key in r1.METRICS},
    }


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL of clean and corrupted images."""
    for axes, place in zip(canvas.subplots(1, 2, sharey=True), ("clean", "corrupted")):
        axes.barh([r1.TITLES[name] for name in figure], [each[place] for each in figure.values()], color="#3b5bdb")
        axes.set_xlabel(f"NLL of {place} images, nats")
        axes.invert_yaxis()


register(
    Recipe(
        id="r1-imagenet",
        title="ResNet-50 on a tree of image folders: rank-1 factors against BatchEnsemble and the plain network",
        presets=PRESETS,
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
