"""kt-steptime: time and memory of a training step (k-tied Normal, table 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.bench.capturing import capture
from leanbayes.bench.measuring import interleaved, peak_bytes
from leanbayes.compare.threads import suitable_threads
from leanbayes.models import create
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Milliseconds of one training step on the authors' machine.
_PUBLISHED = {"point estimate": 2.00, "mean-field": 7.17, "2-tied": 6.14}
_COLOURS = {"point estimate": "#868e96", "mean-field": "#f59f00", "2-tied": "#0b7285"}
# Of mean-field's time, and of its memory where the layers are wide.
_TIME, _MEMORY = 1.0, 0.75
_EXAMPLES = 60_000


def measure(run: Run) -> Outcome:
    """Time steps of the printed network and of a wide one in turns, and take their peak memory."""
    s = run.settings
    names = {"printed": "784-128-10", "wide": "-".join(str(width) for width in s["wide"])}
    places = {f"{names[kind]}{where}": (kind, device) for device, where in _devices(run).items() for kind in names}
    pieces = {f"{kind}-{device}": (kind, device) for kind, device in places.values()}
    done = run.units(_figures, pieces, alone=pieces)
    found = dict(zip(places, done.values()))
    rows: list[Row] = []
    checks = []
    for network, (kind, _) in places.items():
        times = {name: [1e3 * seconds for seconds in values] for name, values in found[network]["seconds"].items()}
        for name, values in times.items():
            published = _PUBLISHED[name] if kind == "printed" else None
            rows.append(Row(f"{name}, {network}", "training step, ms", published, [median(values)]))
        ratio = [a / b for a, b in zip(times["2-tied"], times["mean-field"])]
        text = f"{network}: 2-tied over mean-field, time of a step"
        rows.append(Row("2-tied over mean-field, " + network, "time of a step", 0.86, [median(ratio)]))
        checks.append(at_most(text, [median(ratio)], _TIME))
        if found[network]["bytes"]:
            sizes = found[network]["bytes"]
            rows += [Row(f"{name}, {network}", "peak memory, MB", None, [size / 1e6]) for name, size in sizes.items()]
            share = sizes["2-tied"] / sizes["mean-field"]
            rows.append(Row("2-tied over mean-field, " + network, "peak memory", None, [share]))
            if kind == "wide":
                checks.append(at_most(f"{network}: 2-tied over mean-field, peak memory", [share], _MEMORY))
    notes = [
        f"batches of {s['batch_size']}, Adam, drawn weights; on a GPU compiled and recorded as CUDA graphs, on a CPU "
        "uncompiled, small networks on one thread as `fit` trains them; medians of "
        f"{s['rounds']} rounds in which the methods take turns; memory with gradients and optimiser",
    ]
    if run.device != "cuda":
        notes.append("peak memory is measured on GPUs")
    figure = {of: {name: median(values) for name, values in one["seconds"].items()} for of, one in found.items()}
    return Outcome(rows, checks, {"seconds": figure}, notes)


def _devices(run: Run) -> dict[str, str]:
    """Where steps are timed, and what names of networks say of it: a machine with a GPU has a CPU, too."""
    return {"cuda": "", "cpu": ", CPU"} if run.device == "cuda" else {run.device: ""}


def _figures(run: Run, kind: str, place: str) -> dict[str, Any]:
    s = run.settings
    device = torch.device(place)
    widths = (784, 128, 10) if kind == "printed" else tuple(s["wide"])
    steps = {name: (lambda name=name: _step(name, widths, s["batch_size"], device)) for name in _PUBLISHED}
    with suitable_threads(_plain(widths)):
        seconds = interleaved({name: make() for name, make in steps.items()}, s["rounds"], device, s["round_s"])
    memory = {name: peak_bytes(make, device) for name, make in steps.items()} if place == "cuda" else {}
    return {"seconds": seconds, "bytes": memory}


def _plain(widths: tuple[int, ...]) -> nn.Module:
    inputs, *hidden, outputs = widths
    return create("mlp", in_features=inputs, hidden=tuple(hidden), classes=outputs)


def _step(name: str, widths: tuple[int, ...], batch: int, device: torch.device) -> Callable[[], Tensor]:
    """A training step on a fixed batch."""
    net = _plain(widths)
    options: dict[str, Any] = {"estimator": "weight", "bias": "same"}
    methods = {"mean-field": lb.MeanField(**options), "2-tied": lb.KTied(2, **options)}
    model = (net if name not in methods else lb.bayesianize(net, methods[name])).to(device)
    x = torch.randn(batch, widths[0], device=device)
    y = torch.randint(widths[-1], (batch,), device=device)
    if device.type == "cuda":
        elbo = lb.ELBO(model, _EXAMPLES)
        step = capture(elbo, torch.optim.Adam(elbo.parameters(), fused=True))
        return lambda: step(x, y).loss
    loss_of = (lambda: F.cross_entropy(model(x), y)) if name not in methods else _loss(lb.ELBO(model, _EXAMPLES), x, y)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return run


def _loss(elbo: lb.ELBO, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    return lambda: elbo(x, y).loss


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Times of a step over that of a point estimate."""
    axes = canvas.subplots()
    networks = list(figure["seconds"])
    for place, (name, colour) in enumerate(_COLOURS.items()):
        values = [figure["seconds"][one][name] / figure["seconds"][one]["point estimate"] for one in networks]
        bars = axes.bar([k + 0.27 * (place - 1) for k in range(len(networks))], values, 0.27, color=colour, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(networks)), networks)
    axes.set_ylabel("time of a step over that of a point estimate")
    axes.set_title("a training step of free and tied standard deviations")
    axes.legend(frameon=False)


_COMMON: dict[str, Any] = {"batch_size": 128}
register(
    Recipe(
        id="kt-steptime",
        title="Time of a training step: point estimate, mean-field and 2-tied",
        presets={
            "smoke": _COMMON | {"wide": (64, 64, 10), "rounds": 2, "round_s": 0.0},
            "short": _COMMON | {"wide": (4096, 4096, 4096, 10), "rounds": 15, "round_s": 0.2},
            "paper": _COMMON | {"wide": (4096, 4096, 4096, 10), "rounds": 50, "round_s": 0.5},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
