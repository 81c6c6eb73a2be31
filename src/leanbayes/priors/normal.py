"""Normal priors: fixed, scaled by fan-in, or centred on pretrained weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._checks import check_number, check_positive, is_number
from leanbayes._registry import register_prior
from leanbayes.priors._base import Prior


def normal_log_prob(value: Tensor, mean: Tensor | float, std: float) -> Tensor:
    """Log density of N(mean, std^2)."""
    return -0.5 * ((value - mean) / std).square() - math.log(std) - 0.5 * math.log(2 * math.pi)


class NormalPrior(Prior):
    """Any prior N(mean, std^2) once it is bound to a weight; KL terms are registered for this class."""

    mean: Any  # a number, or one per element
    std: float

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`."""
        return normal_log_prob(value, self.mean, self.std)


@register_prior("Normal")
@dataclass(frozen=True)
class Normal(NormalPrior):
    """N(mean, std^2) on every element."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, mean=self.mean)
        check_positive(self, std=self.std)


@register_prior("HeNormal")
@dataclass(frozen=True)
class HeNormal(Prior):
    """N(0, 2 / fan_in): the scale of He initialisation."""

    def bind(self, value: Tensor, fan: int) -> Prior:
        """See `Prior`."""
        return Normal(0.0, math.sqrt(2.0 / fan))


@register_prior("Pretrained")
@dataclass(frozen=True)
class Pretrained(Prior):
    """N(w, std^2), centred on the weights that the model had at conversion."""

    std: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, std=self.std)

    def bind(self, value: Tensor, fan: int) -> Prior:
        """See `Prior`."""
        return CenteredNormal(value, self.std)


class CenteredNormal(nn.Module, NormalPrior):
    """N(mean, std^2) with a mean per element, kept as a buffer so that it moves and is saved with the model."""

    def __init__(self, mean: Tensor, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.std = std


@register_prior("ScaleMixture")
@dataclass(frozen=True)
class ScaleMixture(Prior):
    """``weight * N(0, std^2) + (1 - weight) * N(0, narrow_std^2)`` (Blundell et al. 2015)."""

    weight: float = 0.5
    std: float = 1.0
    narrow_std: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, std=self.std, narrow_std=self.narrow_std)
        if not (is_number(self.weight) and 0 < self.weight < 1):
            raise ValueError(f"ScaleMixture(weight=...) takes a number between 0 and 1, not {self.weight!r}")

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`; summed in log space, so that it is finite where both densities underflow."""
        wide = normal_log_prob(value, 0.0, self.std) + math.log(self.weight)
        narrow = normal_log_prob(value, 0.0, self.narrow_std) + math.log1p(-self.weight)
        return torch.logaddexp(wide, narrow)
