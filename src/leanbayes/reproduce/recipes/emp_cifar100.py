"""emp-cifar100: patched PyramidNets against dropout and the plain network (Ensemble Model Patching, table 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes import _steptime as steptime
from leanbayes.reproduce.recipes._checks import at_least, at_most, no_less_accurate
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

ID = "emp-cifar100"
# Top-1, top-5, expected and maximum calibration error of 200 samples, in percent.
_PUBLISHED = {
    "emp": (74.0, 92.0, 13.6, 28.9),
    "ecmp": (73.5, 91.9, 8.73, 18.1),
    "dropout": (72.0, 91.4, 21.1, 52.3),
    "vanilla": (72.6, 90.9, 21.6, 54.6),
}
_METRICS = {"top1": "top-1, %", "top5": "top-5, %", "ece": "ECE, %", "mce": "maximum calibration error, %"}
COLOURS = {"vanilla": "#868e96", "dropout": "#d9480f", "emp": "#3b5bdb", "ecmp": "#2b8a3e"}
# Of vanilla's calibration error, and of the time of its training step.
_CALIBRATION = {"emp": 0.7, "ecmp": 0.5}
_SLOWER = 1.1
_TIMED = {"emp": "EMP", "emp-norms": "EMP (norms)", "ecmp": "ECMP", "ecmp-norms": "ECMP (norms)"}
_TIME = "time of a step over that of vanilla"


def measure(run: Run) -> Outcome:
    """Train the four networks, compare their predictions of the same images, and time their training steps."""
    networks = {f"{name}-seed{seed}": (name, seed) for name in emp.NAMES for seed in run.seeds}
    times = {f"time-{name}": (name, None) for name in _TIMED}
    done = run.decided_by(emp.deciding).units(_piece, networks | times, alone=times)
    found = {name: [done[f"{name}-seed{seed}"] for seed in run.seeds] for name in emp.NAMES}
    slower = {name: [done[f"time-{name}"]["ratio"]] for name in _TIMED}
    most = max(run.settings["samples"])
    last = {name: [emp.at(one, most) for one in ones] for name, ones in found.items()}
    rows = [
        row
        for name, values in _PUBLISHED.items()
        for row in Row.by_metric(emp.NAMES[name], _METRICS, last[name], values)
    ]
    rows += [Row(emp.NAMES[name], "NLL, nats", None, [one["nll"] for one in ones]) for name, ones in last.items()]
    rows += [Row(title, _TIME, None, slower[name]) for name, title in _TIMED.items()]
    checks = []
    for name in ("emp", "ecmp"):
        for other in ("vanilla", "dropout"):
            right, others = ([one["right"] for one in found[each]] for each in (name, other))
            checks.append(no_less_accurate(emp.NAMES[name], other, right, others))
            gain = [a["top1"] - b["top1"] for a, b in zip(last[name], last[other])]
            checks.append(at_least(f"{emp.NAMES[name]}: top-1 above that of {other}", gain, 0.0, " points"))
        ratio = [a["ece"] / b["ece"] for a, b in zip(last[name], last["vanilla"])]
        checks.append(at_most(f"{emp.NAMES[name]}: ECE over that of vanilla", ratio, _CALIBRATION[name]))
        checks.append(at_most(f"{emp.NAMES[name]}: {_TIME}", slower[name], _SLOWER))
    s = run.settings
    notes = [
        f"{s['epochs']} epochs of batches of {s['batch_size']} (published: 400 of 256), Adam at {s['lr']:g}, "
        f"{s['schedule']} learning rate; {most} samples",
        f"dropout at a rate of {s['dropout']} before every norm; {emp.COMPONENTS} copies of norms and output, which "
        f"start {s['init']} with a spread of {s['init_std']:g}",
        steptime.note(run),
    ]
    return Outcome(rows, checks, {"curves": {name: ones[0]["curve"] for name, ones in found.items()}}, notes)


def _piece(run: Run, name: str, seed: int | None) -> dict[str, Any]:
    """Scores of a network, or the time of its steps where there is no seed."""
    return emp.step_time(run, name) if seed is None else emp.scores(run, name, seed)


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Accuracy against confidence."""
    axes = canvas.subplots()
    curves = figure["curves"]
    emp.draw_calibration(axes, {emp.NAMES[name]: curves[name] for name in curves}, [COLOURS[name] for name in curves])
    axes.set_title("patches bring confidence down to accuracy")
    axes.legend(frameon=False)


register(
    Recipe(
        id=ID,
        title="PyramidNet-110-270 on 100 classes: patched norms and output against dropout and the plain network",
        presets=emp.PRESETS,
        seeds=emp.SEEDS,
        measure=measure,
        draw=draw,
    )
)
