"""The training loop of the estimators: steps, evaluations of the held-out rows, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from leanbayes._sampling import sampling
from leanbayes.objectives import ELBO
from leanbayes.training.capture import CapturedStep
from leanbayes.training.evaluate import evaluating, score
from leanbayes.training.history import History
from leanbayes.training.schedules import LearningRate

# Samples of an evaluation, over all components.
_SAMPLES = 16
_BLOCK = 4096
# Epochs, and optimiser steps, without a better NLL that "auto" waits for at least.
_PATIENCE = 10, 500
# After the best epoch of the steady phase, the learning rate falls to zero over this share of the epochs it took.
_FALL = 1 / 3


class Rows(NamedTuple):
    """Examples on the device."""

    x: Tensor
    y: Tensor
    weights: Tensor

    def take(self, index: Tensor) -> Rows:
        """Some of them."""
        return Rows(*(part[index] for part in self))


@dataclass
class Loop:
    """Trains an objective.

    Attributes:
        elbo: The objective.
        step: Takes an optimiser step.
        optimizer: Its optimiser.
        batch_size: Examples of a step.
        order: Source of the order of the examples.
        seed: Of the draws of an evaluation.
        report: Called with each epoch's record.
        history: What has happened. A record's ``step`` counts the optimiser steps that have led to its weights.
        rate: Factor of the learning rate by the number of those steps.
    """

    elbo: ELBO
    step: CapturedStep
    optimizer: Optimizer
    batch_size: int
    order: torch.Generator
    seed: int
    report: Callable[[dict[str, Any]], None]
    history: History = field(default_factory=History)
    rate: Callable[[int], float] = lambda step: 1.0
    _count: int = 0
    _components: int = 1
    _best: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(self, rows: Rows, epochs: int) -> None:
        """Train for a number of epochs; the learning rate falls to zero along half a cosine."""
        self.rate = LearningRate("cosine", steps=epochs * self._steps(rows))
        for _ in range(epochs):
            self._epoch(rows)
        _check_finite(self.history.last["loss"])

    def run_until_worse(self, rows: Rows, held: Rows, epochs: int, patience: int | str) -> None:
        """Train until held-out rows are explained no better, and end with the weights that explained them best.

        The learning rate stays until `patience` epochs have brought no better NLL. Then training goes back to the best
        epoch, and from there the learning rate falls to zero, which takes a third as many epochs again.
        """
        if isinstance(patience, str):
            patience = max(_PATIENCE[0], math.ceil(_PATIENCE[1] / self._steps(rows)))
        steady = max(1, round(epochs / (1 + _FALL)))
        while len(self.history) < steady and self.history.waited < patience:
            self._epoch(rows, held)
        fall = min(max(1, round(self.history.best["epoch"] * _FALL)), epochs - len(self.history))
        self._go_to_best()
        if fall:
            self.rate = Falling(self._count, self._count + fall * self._steps(rows))
        for _ in range(fall):
            self._epoch(rows, held)
        self._go_to_best()
        _check_finite(self.history.best["valid_nll"])

    def run_steps(self, rows: Rows, steps: int, rate: Callable[[int], float]) -> None:
        """Train for a number of steps, with the learning rates of an earlier training."""
        self.rate = rate
        while self._count < steps:
            self._epoch(rows, most=steps - self._count)
        _check_finite(self.history.last["loss"])

    @torch.no_grad()
    def evaluate(self, held: Rows) -> float:
        """NLL per example of held-out rows, with the noise that suits them best where one is fitted to them."""
        size = min(_BLOCK, self.elbo.dataset_size)
        with evaluating(self.elbo, max(1, _SAMPLES // self._components)), sampling(seed=self.seed):
            outputs = torch.cat([self.elbo(x, y).outputs for x, y in zip(held.x.split(size), held.y.split(size))], 1)
        likelihood = self.elbo.likelihood
        likelihood.fit_held_out_(outputs, held.y, held.weights)
        nll, weight = score(likelihood, outputs, held.y, held.weights)[:2].tolist()
        return nll / weight

    def _epoch(self, rows: Rows, held: Rows | None = None, most: int | None = None) -> None:
        self.elbo.train()
        total = torch.zeros((), dtype=torch.float64, device="cpu" if rows.x.device.type == "mps" else rows.x.device)
        seen = 0
        for batch in self._batches(rows, most):
            for group, lr in zip(self.optimizer.param_groups, self._rates):
                group["lr"] = lr * self.rate(self._count)
            terms = self.step(batch.x, batch.y, weights=batch.weights)
            self._components = terms.outputs.shape[0]
            total += terms.loss.detach().to(total) * len(batch.x)
            seen += len(batch.x)
            self._count += 1
        record = {"epoch": len(self.history) + 1, "step": self._count, "loss": float(total) / seen}
        if held is not None:
            record["valid_nll"] = self.evaluate(held)
        self.history.records.append(record)
        if self.history.best is record:
            self._best = {name: value.clone() for name, value in self.elbo.state_dict().items()}
        self.report(record)

    def _go_to_best(self) -> None:
        self.elbo.load_state_dict(self._best)
        self._count = self.history.best["step"]

    def _steps(self, rows: Rows) -> int:
        return -(-self._used(rows) // self.batch_size)

    def _used(self, rows: Rows) -> int:
        """Examples of an epoch: a last batch of a single one is left out, on which a batch norm cannot train."""
        count = len(rows.x)
        return count - 1 if count % self.batch_size == 1 and count > self.batch_size > 1 else count

    def _batches(self, rows: Rows, most: int | None) -> Iterator[Rows]:
        order = torch.randperm(len(rows.x), generator=self.order).to(rows.x.device)
        for index in order[: self._used(rows)].split(self.batch_size)[:most]:
            yield rows.take(index)


def _check_finite(loss: float) -> None:
    """Raise where training has come to nothing, whose predictions would be no numbers."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"training has diverged, with a loss of {loss}; lower lr")


@dataclass(frozen=True)
class Falling:
    """A factor of the learning rate: 1 up to a step, then in a straight line to zero at another."""

    start: int
    end: int

    def __call__(self, step: int) -> float:
        """The factor for the step with this number."""
        return min(1.0, (self.end - step) / (self.end - self.start))
