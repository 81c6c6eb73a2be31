"""emp-ablation: patches without the output layer, and with a component of zeros (Ensemble Model Patching, D.1)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_FAMILIES = {"emp": "EMP", "ecmp": "ECMP"}
_PARTS = {"": "", "-norms": ", norms alone", "-zero": ", a component of zeros"}
NAMES = {family + part: title + text for family, title in _FAMILIES.items() for part, text in _PARTS.items()}
NAMES = {"vanilla": "vanilla"} | NAMES
_METRICS = {"top1": "top-1, %", "ece": "ECE, %", "mce": "maximum calibration error, %", "nll": "NLL, nats"}
# Appendix D.1 has no figures: "also indicate worse performance".
_ZERO = "worse than without"


def measure(run: Run) -> Outcome:
    """Train the networks and compare their predictions of the same images."""
    found = run.each_seed_of(_scores, NAMES)
    most = max(run.settings["samples"])
    last = {name: [emp.at(one, most) for one in ones] for name, ones in found.items()}
    rows, checks = [], []
    for name, title in NAMES.items():
        rows += Row.by_metric(title, _METRICS, last[name], [_ZERO] if name.endswith("-zero") else [])
        added = [100 * (a["parameters"] / b["parameters"] - 1) for a, b in zip(found[name], found["vanilla"])]
        rows.append(Row(title, "parameters added, %", None, added))
    for family, title in _FAMILIES.items():
        gain = [a["top1"] - b["top1"] for a, b in zip(last[family], last[f"{family}-zero"])]
        checks.append(at_least(f"{title}: top-1 above that with a component of zeros", gain, 0.0, " points"))
        ratio = [a["ece"] / max(b["ece"], 1e-9) for a, b in zip(last[family], last[f"{family}-norms"])]
        checks.append(at_most(f"{title}: ECE over that of patched norms alone", ratio, 1.0))
    s = run.settings
    notes = [
        f"PyramidNet-{s['depth']}-{s['alpha']}, {s['epochs']} epochs of batches of {s['batch_size']} by Adam at "
        f"{s['lr']:g}, {s['schedule']} learning rate; {most} samples",
        "appendix D.1 says in one sentence that a component of zeros is worse, and table 4 that patching the output as "
        "well is better calibrated, on ImageNet; there are no published figures for this network",
    ]
    figure = {key: {name: fmean(one[key] for one in ones) for name, ones in last.items()} for key in ("top1", "ece")}
    return Outcome(rows, checks, figure, notes)


def _scores(run: Run, name: str, seed: int) -> dict[str, Any]:
    """Scores of one network; those of emp-cifar100 serve where they are of the same size."""
    same = all(run.settings[key] == emp.PRESETS[run.preset][key] for key in ("depth", "alpha"))
    return emp.scores(run, name, seed, "emp" if same else "emp-ablation")


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracy and calibration error of every network."""
    panels = canvas.subplots(1, 2, sharey=True)
    colours = {"": "#3b5bdb", "norms": "#74c0fc", "zero": "#d9480f"}
    for axes, (key, values) in zip(panels, figure.items()):
        bars = [colours[name.partition("-")[2]] if name != "vanilla" else "#868e96" for name in values]
        shown = axes.barh([NAMES[name] for name in values], list(values.values()), color=bars)
        axes.bar_label(shown, fmt="%.3g", fontsize=8, padding=2)
        axes.margins(x=0.15)
        axes.set_xlabel(_METRICS[key])
    panels[0].invert_yaxis()


register(
    Recipe(
        id="emp-ablation",
        title="Patched PyramidNets without patches of the output, and with a component of zeros",
        presets=emp.PRESETS
        | {"short": emp.PRESETS["short"] | {"depth": 20, "alpha": 84, "epochs": 30, "samples": (1, 20, 50)}},
        seeds=emp.SEEDS,
        measure=measure,
        draw=draw,
    )
)
