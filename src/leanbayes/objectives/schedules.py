"""Schedules of the KL weight, in optimiser steps."""

from __future__ import annotations

from dataclasses import dataclass

from leanbayes._checks import check_count, check_positive


@dataclass(frozen=True)
class LinearAnneal:
    """From 0 to 1 in a straight line over `steps` optimiser steps, then 1.

    Example:
        >>> [LinearAnneal(4)(step) for step in (0, 1, 4, 9)]
        [0.0, 0.25, 1.0, 1.0]
    """

    steps: int

    def __post_init__(self) -> None:
        check_count(self, steps=self.steps)

    def __call__(self, step: int) -> float:
        """The weight at a step."""
        return min(1.0, step / self.steps)


@dataclass(frozen=True)
class StepAnneal:
    """Raised by `per` for each optimiser step, but only every `every` steps, up to 1 (the k-tied paper's way).

    Example:
        >>> [StepAnneal(per=0.002, every=100)(step) for step in (0, 99, 100, 250, 10_000)]
        [0.0, 0.0, 0.2, 0.4, 1.0]
    """

    per: float
    every: int = 100

    def __post_init__(self) -> None:
        check_positive(self, per=self.per)
        check_count(self, every=self.every)

    def __call__(self, step: int) -> float:
        """The weight at a step."""
        return min(1.0, self.per * self.every * (step // self.every))
