"""Optimiser steps: passes, accumulation, clipping, and what schedules set before each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch

from leanbayes._sampling import current_sampling, using
from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import Batch
from leanbayes.training.execution import Execution
from leanbayes.training.graphs import CannotRecord, GraphedStep, settings_of
from leanbayes.training.meter import Meter
from leanbayes.training.optimizers import make_optimizer
from leanbayes.training.runtime import Runtime
from leanbayes.training.seeds import derive

_LOG = logging.getLogger("leanbayes")


class Stepper:
    """Takes one optimiser step after the other.

    Args:
        runtime: Where passes run; the objective is set up there already.
        elbo: The objective.
        config: How to train.
        rate: Factor of the learning rates by the number of steps taken.
        kl_at: Weight of the KL by the number of steps taken.
        check: Is called once, with the shape of an output, before the first gradient.
        execution: How steps run.

    Attributes:
        optimizer: The optimiser.
        meter: Where losses are noted.
        count: Number of steps taken.
        noise: Source of the model's draws, which no other thread shares; None where steps are compiled and draw from
            torch's own generators.
    """

    def __init__(
        self,
        runtime: Runtime,
        elbo: ELBO,
        config: TrainConfig,
        *,
        rate: Callable[[int], float],
        kl_at: Callable[[int], float],
        check: Callable[[torch.Size], None],
        execution: Execution,
    ) -> None:
        self.runtime = runtime
        self.elbo = elbo
        self.clip = config.clip
        self.rate = rate
        self.kl_at = kl_at
        self.check = check
        self.optimizer = make_optimizer(elbo, config)
        self.meter = Meter(runtime.device)
        self.count = 0
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self._checked = False
        # Whether the gradients there are belong to a step that is done.
        self._gradients_used = True
        self.noise: torch.Generator | None = None
        self.execution = execution
        if not execution.compile:
            self.noise = torch.Generator(runtime.device).manual_seed(derive(config.seed, "noise", runtime.rank))
        self._graphed = self._recorded() if execution.record else None
        self._recorded_with: list[Any] = []

    def __call__(self, group: list[Batch]) -> None:
        """One step from the passes of a group, averaged over their examples; empties the group."""
        state = current_sampling()
        directed = state.generator is not None or state.stream is not None
        with nullcontext() if self.noise is None or directed else using(state.replace(generator=self.noise)):
            self._step(group)

    def _step(self, group: list[Batch]) -> None:
        if self._graphed is not None and self._checked:
            self._play(self._graphed, group.pop())
            return
        total = sum(batch.rows for batch in group)
        while len(group) > 1:
            with self.runtime.accumulating():
                self._pass(group, total)
        self._pass(group, total)
        self._clip()
        self._set_rates()
        # A number, set by the host, which counts the steps itself: reading the device's count would wait for it.
        weight = self.kl_at(self.count + 1)
        if weight != self.elbo.kl_weight:
            self.elbo.kl_weight = weight
        self.optimizer.step()
        self.count += 1
        self._gradients_used = True

    def begin_epoch(self) -> None:
        """Forget a recording where a callback has changed what it depends on."""
        graphed = self._graphed
        if graphed is not None and graphed.graph is not None and self._recorded_with != settings_of(self.elbo.model):
            graphed.forget()

    @property
    def how(self) -> str:
        """How steps run, in words."""
        recorded = self._graphed is not None and self._graphed.graph is not None
        return self.execution.describe(compiled=self.runtime.compiled, recorded=recorded)

    def go_to(self, count: int) -> None:
        """Go on as if so many steps had been taken."""
        self.count = count
        self.elbo.kl_weight = self.kl_at(count)

    def settings(self) -> dict[str, float]:
        """The learning rate and the KL weight of the last step."""
        before = max(0, self.count - 1)
        return {"lr": self._base_rates[0] * self.rate(before), "kl_weight": self.kl_at(before)}

    def _pass(self, group: list[Batch], total: int) -> None:
        """Forward and backward of a group's next batch, which is let go as early as autograd does."""
        rows = group[0].rows
        terms = self.runtime.forward(group.pop(0))
        if not self._checked:
            self._checked = True
            self.check(terms.outputs.shape[2:])
        if self._gradients_used:
            # Only now: the old gradients' memory goes straight to the new ones.
            self.optimizer.zero_grad()
            self._gradients_used = False
        self.runtime.backward(terms.loss if rows == total else terms.loss * (rows / total))
        self.meter.add(terms, rows)

    def _recorded(self) -> GraphedStep:
        """A step to record."""

        def step(batch: Batch) -> Terms:
            terms = self.runtime.forward(batch)
            self.runtime.backward(terms.loss)
            self._clip()
            self.optimizer.step()
            return terms

        return GraphedStep(step, self.optimizer, self.runtime.device, self.noise)

    def _play(self, graphed: GraphedStep, batch: Batch) -> None:
        """The same as a recorded step."""
        self._set_rates()
        self.elbo.kl_weight = self.kl_at(self.count + 1)
        first = graphed.graph is None
        done = self._try(graphed, batch)
        if done is None:
            self._step([batch])
            return
        terms, played = done
        if first and played:
            self._recorded_with = settings_of(self.elbo.model)
        if played:
            self.elbo.advance()
        self.count += 1
        self.meter.add(terms, batch.rows)

    def _try(self, graphed: GraphedStep, batch: Batch) -> tuple[Terms, bool] | None:
        """A step; None where it cannot be recorded, and what the recording has begun is gone."""
        try:
            return graphed(batch)
        except CannotRecord as error:
            if self.execution.must:
                raise
            _LOG.warning("%s; training continues without", str(error).partition(";")[0])
            self._graphed = None
            return None

    def _clip(self) -> None:
        if self.clip is not None:
            self.runtime.clip(self.optimizer, self.clip)

    def _set_rates(self) -> None:
        factor = self.rate(self.count)
        for group, base in zip(self.optimizer.param_groups, self._base_rates):
            if isinstance(group["lr"], torch.Tensor) and group["lr"].device == self.runtime.device:
                group["lr"].fill_(base * factor)  # a recorded step reads it there
            else:
                group["lr"] = base * factor


def grouped(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """The batches of each optimiser step; the last group of an epoch may be smaller."""
    batches = iter(batches)
    # No name for a batch: it would keep the batch alive until there is the next.
    while group := list(islice(batches, size)):
        yield group
