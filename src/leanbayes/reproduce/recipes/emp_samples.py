"""emp-samples: calibration against the number of samples (Ensemble Model Patching, tables 9 to 11, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes import emp_cifar100
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Top-5, top-1, ECE and maximum calibration error in percent at 1, 20, 100 and 200 samples.
_PUBLISHED = {
    "emp": ((90.9, 72.2, 21.2, 50.1), (91.6, 73.2, 14.2, 30.0), (91.7, 74.2, 13.6, 30.3), (92.0, 74.0, 13.6, 28.9)),
    "ecmp": ((89.3, 69.3, 23.9, 53.0), (91.6, 72.9, 9.35, 21.4), (91.8, 72.7, 8.81, 18.2), (91.9, 73.5, 8.73, 18.1)),
    "dropout": ((91.0, 72.0, 21.8, 54.2), (91.4, 72.3, 21.0, 50.7), (91.1, 72.2, 21.0, 51.9), (91.4, 72.0, 21.1, 52.3)),
}
_METRICS = {"top5": "top-5, %", "top1": "top-1, %", "ece": "ECE, %", "mce": "maximum calibration error, %"}
# What counts as flat, in points.
_FLAT = 0.5


def measure(run: Run) -> Outcome:
    """The networks of emp-cifar100 with more and more samples."""
    found = run.as_recipe(emp_cifar100.ID).decided_by(emp.deciding).each_seed_of(emp.scores, _PUBLISHED)
    counts = run.settings["samples"]
    rows, checks, curves = [], [], {}
    for name, published in _PUBLISHED.items():
        for samples, values in zip(counts, published):
            ones = [emp.at(one, samples) for one in found[name]]
            rows += Row.by_metric(f"{emp.NAMES[name]}, S = {samples}", _METRICS, ones, values)
        errors = {samples: [emp.at(one, samples)["ece"] for one in found[name]] for samples in counts}
        curves[name] = {"samples": list(counts), "ece": [fmean(values) for values in errors.values()]}
        if name != "dropout":
            first, *_, before, last = errors.values()
            title = emp.NAMES[name]
            more = [b - a for a, b in zip(first, last)]
            checks.append(at_most(f"{title}: ECE of {counts[-1]} samples less that of one", more, 0.0, " points"))
            change = [abs(b - a) for a, b in zip(before, last)]
            checks.append(
                at_most(
                    f"{title}: change of the ECE from {counts[-2]} to {counts[-1]} samples", change, _FLAT, " points"
                )
            )
    return Outcome(rows, checks, {"curves": curves}, [])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Calibration error over samples."""
    axes = canvas.subplots()
    for name, curve in figure["curves"].items():
        axes.plot(curve["samples"], curve["ece"], marker="o", color=emp_cifar100.COLOURS[name], label=emp.NAMES[name])
    axes.set_xscale("log")
    axes.set_xlabel("samples")
    axes.set_ylabel("ECE, %")
    axes.set_ylim(bottom=0)
    axes.set_title("more samples calibrate patched networks, and not dropout")
    axes.legend(frameon=False)


register(
    Recipe(
        id="emp-samples",
        title="Calibration of patched PyramidNets against the number of samples",
        presets=emp.PRESETS,
        seeds=emp.SEEDS,
        measure=measure,
        draw=draw,
    )
)
