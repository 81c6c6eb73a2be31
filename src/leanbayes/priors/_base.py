"""What every prior offers."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from torch import Tensor


class Prior(ABC):
    """A distribution that posteriors are measured against; priors are frozen dataclasses.

    Attributes:
        support: ``"real"`` or ``"positive"``.
        heavy_tailed: Whether a heavy-tailed posterior has a finite KL divergence from it.
        proper: Whether `log_prob` is a normalised density.
    """

    support: ClassVar[str] = "real"
    heavy_tailed: ClassVar[bool] = False
    proper: ClassVar[bool] = True

    def bind(self, value: Tensor, fan: int) -> Prior:
        """The prior for one weight, given its value at conversion and its number of inputs per output."""
        return self

    def with_constant(self, constant: bool) -> Prior:
        """This prior, with its divergences reported in full, or with `left_out` subtracted."""
        return self

    def left_out(self) -> float:
        """What is subtracted from divergences from this prior, per element."""
        return 0.0

    def log_prob(self, value: Tensor) -> Tensor:
        """Elementwise log density."""
        raise NotImplementedError(f"{type(self).__name__} has no normalised density")
