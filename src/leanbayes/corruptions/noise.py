"""Noise that is independent from pixel to pixel and channel to channel."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.corruptions._constants import Constants
from leanbayes.corruptions._registry import register


@register
def gaussian_noise(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Normal noise of one standard deviation, as in low light."""
    (std,) = constants
    return x + std * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


@register
def shot_noise(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Poisson counts in place of their means, as by the discreteness of light."""
    (photons,) = constants
    return torch.poisson(x * photons, generator=generator) / photons


@register
def impulse_noise(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Salt and pepper: a share of the values becomes 0 or 1 with equal probability, as by bit errors."""
    (share,) = constants
    draw = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    return torch.where(draw < share, (draw < share / 2).to(x.dtype), x)
