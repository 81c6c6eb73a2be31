"""Training steps: forward, backward and optimiser, of the plain network and of contenders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.bench.capturing import captured_step, start_up
from leanbayes.bench.contenders import Contender
from leanbayes.bench.setup import DATASET_SIZE, Setup
from leanbayes.objectives import ELBO

EAGER, CAPTURED = MODES = ("eager", "captured")
# Small enough that no network diverges on targets that are noise.
_LR = 1e-4


@dataclass(frozen=True)
class Step:
    """A training step that can be run again and again.

    Attributes:
        run: Trains on the batch; returns the loss.
        model: What is trained.
        how: Says in words how it runs; to be asked after the first run, which may compile.
        start: Of a captured step, what its first calls took, see `start_up`.
    """

    run: Callable[[], Tensor]
    model: nn.Module
    how: Callable[[], str] = lambda: EAGER
    start: Mapping[str, Any] = field(default_factory=dict)


def plain_step(setup: Setup, mode: str) -> Step:
    """A step of the plain network: as one writes it by hand, or captured as those of contenders are."""
    model = setup.place(setup.net()).train()
    if mode == CAPTURED:
        return _captured(setup, model, ELBO(model, DATASET_SIZE))
    return hand_written_step(setup, model, lambda x, y: F.cross_entropy(model(x), y))


def contender_step(setup: Setup, contender: Contender, mode: str) -> Step:
    """A step of a contender."""
    model = setup.place(contender.convert(setup.net())).train()
    elbo = ELBO(model, DATASET_SIZE, tile=contender.tile)
    if mode == CAPTURED:
        return _captured(setup, model, elbo)
    return hand_written_step(setup, model, lambda x, y: elbo(x, y).loss)


def hand_written_step(setup: Setup, model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Step:
    """Forward under autocast, backward, fused optimiser, uncompiled.

    Args:
        setup: What the step is measured on.
        model: Whose parameters are trained.
        loss_of: The loss for inputs and targets.
    """
    optimizer = _optimizer(model)
    x, y = setup.examples(setup.batch)

    def run() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with setup.autocast():
            loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return Step(run, model)


def _captured(setup: Setup, model: nn.Module, elbo: ELBO) -> Step:
    step = captured_step(setup, elbo, _optimizer(model))
    x, y = setup.examples(setup.batch)

    def run() -> Tensor:
        return step(x, y).loss

    return Step(run, model, lambda: str(step.how), start_up(setup, run))


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_LR, momentum=0.9, fused=True)
