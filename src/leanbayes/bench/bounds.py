"""What a contender may cost at most, beside the plain network that is run the same way."""

from __future__ import annotations

from typing import NamedTuple

from leanbayes.bench.contenders import Contender
from leanbayes.bench.peers import Peer
from leanbayes.bench.setup import Setup


class Bounds(NamedTuple):
    """Ratios to the plain network: of the time of a step, of that of a prediction, and of a step's peak memory."""

    captured_step: float
    eager_step: float
    predict: float
    memory: float


_FACTORS = Bounds(1.15, 1.8, 1.15, 1.15)
_PATCHES = Bounds(1.05, 1.3, 1.10, 1.05)
_FLIPOUT = Bounds(1.85, 2.4, 1.9, 1.3)
_LOCAL = Bounds(2.05, 2.6, 2.1, 1.6)
# They hold for bfloat16 on a GPU, a ResNet-18 for CIFAR, steps of 512 and predictions of 256 rows.
RESNET18 = {
    "rank1": _FACTORS,
    "rank1-cauchy": _FACTORS,
    "batch-ensemble": _FACTORS,
    "emp": _PATCHES,
    "ecmp": _PATCHES,
    "k-tied/weight": Bounds(1.10, 1.6, 1.5, 1.15),
    "mean-field/weight": Bounds(1.10, 1.6, 1.5, 1.25),
    # By themselves these methods take flipout on convolutions.
    "k-tied": _FLIPOUT,
    "mean-field": _FLIPOUT,
}
BY_ESTIMATOR = {"flipout": _FLIPOUT, "local": _LOCAL}
# Contenders that bounds are stated for, in the order of the table.
STATED = (*RESNET18, *(f"{name}/{kind}" for name in ("k-tied", "mean-field") for kind in BY_ESTIMATOR))
SAMPLES, BATCH, ROWS = 20, 512, 256
# Network, contender: rows of a step, and the bound of a captured one.
LARGE = {("wrn28-10", "rank1"): (512, 1.15), ("pyramidnet", "emp"): (256, 1.1)}
# A peer of the same posterior family is to take at least so many times as long as ours runs by default.
PEER = 2.0
_DEFAULT = {"cuda": "captured", "cpu": "eager"}
# Seconds until a ResNet-18 takes captured steps, where nothing of it was compiled before.
START_UP = 60.0


def bound(setup: Setup, contender: Contender, mode: str, part: str, samples: int | None = None) -> float | None:
    """The largest ratio to the plain network; None where none is stated."""
    if setup.device.type != "cuda" or setup.precision != "bf16":
        return None
    large = LARGE.get((setup.network.name, contender.name))
    if large is not None and part == "step" and mode == "captured":
        return large[1] if setup.batch == large[0] else None
    if setup.network.name != "resnet18":
        return None
    line = RESNET18.get(contender.name, BY_ESTIMATOR.get(contender.estimator or ""))
    if line is None:
        return None
    if part == "predict":
        return line.predict if (mode, samples, setup.rows) == ("captured", SAMPLES, ROWS) else None
    if setup.batch != BATCH:
        return None
    if part == "step":
        return line.captured_step if mode == "captured" else line.eager_step
    return line.memory if (part, mode) == ("memory", "captured") else None


def start_up_bound(setup: Setup) -> float | None:
    """The seconds after which captured steps should run at the latest; None where no bound is stated."""
    return START_UP if (setup.network.name, setup.device.type) == ("resnet18", "cuda") else None


def peer_bound(setup: Setup, peer: Peer, mode: str) -> float | None:
    """How many times as long as ours, in a mode, a peer should take at least; None where no bound is stated."""
    return PEER if peer.same_family and mode == _DEFAULT[setup.device.type] else None
