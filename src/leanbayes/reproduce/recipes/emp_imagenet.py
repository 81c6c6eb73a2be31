"""emp-imagenet: patched ResNet-18 on ImageNet, or on any tree of image folders (Ensemble Model Patching, table 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_imagenet as imagenet
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Overhead, top-5, top-1, expected and maximum calibration error, in percent.
_PUBLISHED = {
    "emp": (17.9, 87.2, 67.0, 3.91, 6.83),
    "emp-norms": (0.328, 86.8, 66.6, 5.74, 11.0),
    "ecmp": (17.9, 87.2, 67.1, 1.65, 3.15),
    "ecmp-norms": (0.328, 86.8, 66.4, 4.62, 8.07),
    "dropout": (0.0, 86.7, 65.9, 7.61, 14.0),
    "vanilla": (0.0, 86.7, 66.1, 8.09, 14.2),
}
_METRICS = {"top5": "top-5, %", "top1": "top-1, %", "ece": "ECE, %", "mce": "maximum calibration error, %"}
_COLOURS = ("#3b5bdb", "#74c0fc", "#2b8a3e", "#8ce99a", "#d9480f", "#868e96")


def measure(run: Run) -> Outcome:
    """Train the six networks and compare their predictions of the test images."""
    imagenet.images(run)  # what it says of the data stands first
    found = run.each_seed_of(imagenet.clean_scores, imagenet.NAMES)
    rows = []
    for name, (share, *values) in _PUBLISHED.items():
        title = imagenet.NAMES[name]
        rows.append(Row(title, "parameters added, %", share, imagenet.overhead(found, name)))
        rows += Row.by_metric(title, _METRICS | {"nll": "NLL, nats"}, found[name], values)
    checks = []
    for name in ("emp", "ecmp"):
        ratio = [a["ece"] / max(b["ece"], 1e-9) for a, b in zip(found[name], found["vanilla"])]
        checks.append(at_most(f"{imagenet.NAMES[name]}: ECE over that of vanilla", ratio, 1.0))
    s = run.settings
    notes = [
        f"{s['epochs']} epochs of batches of {s['batch_size']} at {s['size']} x {s['size']} (published: 100 of 256 at "
        f"224 x 224), {s['samples']} samples; crops from a border instead of random sizes",
    ]
    return Outcome(rows, checks, {"curves": {name: ones[0]["curve"] for name, ones in found.items()}}, notes)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracy against confidence."""
    axes = canvas.subplots()
    emp.draw_calibration(axes, {imagenet.NAMES[name]: one for name, one in figure["curves"].items()}, _COLOURS)
    axes.set_title("calibration of patched ResNet-18")
    axes.legend(frameon=False, fontsize=8)


register(
    Recipe(
        id="emp-imagenet",
        title="ResNet-18 on a tree of image folders: patched norms, with and without the output",
        presets=imagenet.PRESETS,
        seeds=imagenet.SEEDS,
        measure=measure,
        draw=draw,
    )
)
