"""The time of a training step beside that of the plain network: in one process, in turns, on random images."""

from __future__ import annotations

from typing import Any

import torch

from leanbayes.bench.contenders import Contender
from leanbayes.bench.measuring import settled
from leanbayes.bench.networks import Network
from leanbayes.bench.pairs import step_figures
from leanbayes.bench.setup import Setup
from leanbayes.bench.steps import CAPTURED, EAGER, contender_step, plain_step
from leanbayes.reproduce.run import Run

_ROUNDS, _ROUND_S = 15, 0.2
_KEPT = ("how", "seconds", "plain_seconds", "ratio", "ratio_quartiles")


def step_time(run: Run, network: Network, contender: Contender, batch: int) -> dict[str, Any]:
    """Seconds of a step of both networks, and their ratio; on a GPU captured and in bfloat16 where the run is fast.

    Seconds of epochs would not do: trainings may run beside other work, and on several machines.

    Args:
        run: The run.
        network: The plain network.
        contender: What is set against it.
        batch: Rows of a step.
    """
    fast = _fast(run)
    round_s = 0.0 if run.preset == "smoke" else _ROUND_S
    setup = Setup(network, torch.device(run.device), "bf16" if fast else "32", batch, batch, _rounds(run), round_s)
    mode = CAPTURED if fast else EAGER
    with settled(setup.device):
        step = contender_step(setup, contender, mode)
        found = step_figures(setup, contender, mode, step, plain_step(setup, mode))
    return {name: found[name] for name in _KEPT}


def image_network(name: str, build: Any, classes: int) -> Network:
    """A network on images of 32 x 32 as `step_time` takes it."""
    return Network(name, name, build, (3, 32, 32), classes, True, {}, {})


def note(run: Run) -> str:
    """How times were taken."""
    how = "compiled and recorded, in bfloat16" if _fast(run) else "uncompiled"
    return f"times of training steps on random images by SGD, {how}: medians of {_rounds(run)} rounds of both in turns"


def _fast(run: Run) -> bool:
    return run.settings["fast"] and run.device == "cuda"


def _rounds(run: Run) -> int:
    return 1 if run.preset == "smoke" else _ROUNDS
