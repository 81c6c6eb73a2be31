"""Learning rate and KL weight as functions of the optimiser step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leanbayes.objectives.schedules import LinearAnneal, StepAnneal
from leanbayes.training.config import TrainConfig


@dataclass(frozen=True)
class LearningRate:
    """The factor on the learning rate at each optimiser step; it keeps no state, so resuming needs the step alone.

    Attributes:
        kind: As in `TrainConfig.schedule`.
        steps: Optimiser steps of the whole training.
        warmup: Steps of the warm-up, which reaches 1 at its last step.
        milestones: Steps at which "steps" multiplies by `decay`.
        decay: Factor of "steps".
        final: Where "linear" and "cosine" end.

    Example:
        >>> [LearningRate("linear", steps=4, warmup=2)(step) for step in range(4)]
        [0.5, 1.0, 1.0, 0.5]
    """

    kind: str
    steps: int
    warmup: int = 0
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    final: float = 0.0

    def __call__(self, step: int) -> float:
        """The factor for the step with this number, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "steps":
            return self.decay ** sum(step >= milestone for milestone in self.milestones)
        if self.kind == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        left = 1 - done if self.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final + (1 - self.final) * left


def learning_rate(config: TrainConfig, steps_per_epoch: int) -> LearningRate:
    """The learning-rate schedule of a configuration."""
    return LearningRate(
        config.schedule,
        steps=config.epochs * steps_per_epoch,
        warmup=round(config.warmup * steps_per_epoch),
        milestones=tuple(round(epoch * steps_per_epoch) for epoch in config.milestones),
        decay=config.decay,
        final=config.final_lr,
    )


@dataclass(frozen=True)
class KLWeight:
    """The weight of the KL term at each optimiser step.

    Attributes:
        weight: What it rises to.
        anneal: How it rises, None where it is constant.
    """

    weight: float
    anneal: LinearAnneal | StepAnneal | None = None

    def __call__(self, step: int) -> float:
        """The weight of the step with this number, counted from 0."""
        return self.weight if self.anneal is None else self.weight * self.anneal(step)


def kl_weight(config: TrainConfig, steps_per_epoch: int) -> KLWeight:
    """The schedule of the KL weight of a configuration."""
    steps = round(config.anneal * steps_per_epoch)
    if steps == 0:
        return KLWeight(config.kl_weight)
    every = config.anneal_every
    return KLWeight(config.kl_weight, LinearAnneal(steps) if every == 1 else StepAnneal(1 / steps, every))
