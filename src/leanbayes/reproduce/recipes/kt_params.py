"""kt-params: parameters of mean-field and k-tied networks (k-tied Normal, table 1, figure 6 and table 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import create
from leanbayes.posteriors._method import Method
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import every
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

_RANKS = (None, 1, 2, 3)
_PRESET: dict[str, Any] = {"ranks": _RANKS}
# Relative distance from the printed figures, which are rounded to thousands but for the last network.
_CLOSE = 1e-3


def _family(rank: int | None, bias: str = "point") -> Method:
    return lb.MeanField(bias=bias) if rank is None else lb.KTied(rank, bias=bias)


def _mlp(rank: int | None) -> nn.Module:
    return lb.bayesianize(create("mlp"), _family(rank, "same"))


def _cnn(rank: int | None) -> nn.Module:
    """The dense layers are k-tied, the convolutions mean-field."""
    gaussian = lb.MeanField(bias="same")
    return lb.bayesianize(create("ktied_cnn"), {lb.named("dense*"): _family(rank, "same"), lb.named("*"): gaussian})


def _lstm(rank: int | None) -> nn.Module:
    """The kernels of the LSTM are k-tied, the output is mean-field, and words and biases are points."""
    rules = {lb.named("lstm"): _family(rank), lb.named("output"): lb.MeanField(), lb.named("*"): None}
    return lb.bayesianize(create("text_lstm"), rules)


def _resnet(rank: int | None) -> nn.Module:
    return lb.bayesianize(create("ktied_resnet"), _family(rank))


# The network, printed counts by rank (None is mean-field), and what our count has more or less for a reason.
_NETWORKS: Mapping[str, tuple[Callable[[int | None], nn.Module], tuple[int, ...]]] = {
    "MLP, MNIST": (_mlp, (957_000, 482_000, 484_000, 486_000)),
    "CNN, CIFAR-100": (_cnn, (4_405_000, 2_262_000, 2_268_000, 2_273_000)),
    "LSTM, IMDB": (_lstm, (2_823_000, 2_693_000, 2_694_000, 2_695_000)),
    '"ResNet-18", CIFAR-10': (_resnet, (9_814_026, 4_929_711, 4_946_964, 4_964_217)),
}


def measure(run: Run) -> Outcome:
    """Count the parameters of every network and rank."""
    rows: list[Row] = []
    shares: dict[str, list[float]] = {}
    distances: list[float] = []
    for name, (make, printed) in _NETWORKS.items():
        counts = run.unit(name.partition(",")[0].strip('"'), lambda make=make: [_count(make(rank)) for rank in _RANKS])
        for rank, count, wanted in zip(_RANKS, counts, printed):
            title = "mean-field" if rank is None else f"{rank}-tied"
            rows.append(Row(f"{name}, {title}", "parameters", wanted, [count]))
            distances.append(100 * (count / wanted - 1))
        shares[name] = [count / counts[0] for count in counts[1:]]
    checks = [every("distance from the printed counts", distances, -100 * _CLOSE, 100 * _CLOSE, " %")]
    notes = [
        "torch's LSTM has a second bias of 512, which is not counted; the published ResNet counts have the moving "
        "statistics of norms in them, and so have ours",
    ]
    return Outcome(rows, checks, {"shares": shares}, notes)


def _count(model: nn.Module) -> int:
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert isinstance(module.running_mean, torch.Tensor)
            count += 2 * module.running_mean.numel()
        elif isinstance(module, lb.nn.RecurrentLayer):
            count -= 4 * 128
    return count


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """What is left of mean-field's parameters."""
    axes = canvas.subplots()
    width = 0.25
    for place, (rank, colour) in enumerate(zip((1, 2, 3), ("#99e9f2", "#22b8cf", "#0b7285"))):
        values = [100 * share[place] for share in figure["shares"].values()]
        places = [number + (place - 1) * width for number in range(len(values))]
        bars = axes.bar(places, values, width, color=colour, label=f"{rank}-tied")
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.axhline(100, color="#ced4da", linewidth=1)
    axes.set_xticks(range(len(figure["shares"])), list(figure["shares"]), fontsize=8)
    axes.set_ylabel("parameters, % of mean-field")
    axes.set_title("tied standard deviations cost next to nothing")
    axes.legend(frameon=False, ncols=3)


register(
    Recipe(
        id="kt-params",
        title="Parameters of mean-field networks and of k-tied ones",
        presets={"smoke": _PRESET, "short": _PRESET, "paper": _PRESET},
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
