"""Blurs: out of focus, through frosted glass, by motion, by a moving lens."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.corruptions._constants import Constants
from leanbayes.corruptions._filters import (
    correlate,
    disc_kernel,
    gaussian_blur,
    motion_blur_along,
    take_pixels,
    zoom_in,
)
from leanbayes.corruptions._registry import register


@register
def defocus_blur(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Correlation with a disc whose edge is smoothed."""
    radius, alias_std = constants
    return correlate(x, disc_kernel(radius, alias_std))


@register
def glass_blur(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """A Gaussian blur, a local shuffle of pixels, and the blur again."""
    std, reach, rounds = constants
    x = gaussian_blur(x, std)
    for _ in range(int(rounds)):
        x = take_pixels(x, _shuffle(x, int(reach), generator))
    return gaussian_blur(x, std)


@register
def motion_blur(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Blur along a direction between -45 and 45 degrees, drawn for each image."""
    radius, std = constants
    degrees = 90 * torch.rand(len(x), device=x.device, generator=generator) - 45
    return motion_blur_along(x, radius, std, degrees)


@register
def zoom_blur(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """The mean of the image and of its enlargements, the first of which has factor 1."""
    # The published factors are the floating-point sums 1 + i ((1 + step) - 1); a size may round differently for others.
    count, step = int(constants[0]), (1 + constants[1]) - 1
    total = x.clone()
    for i in range(count):
        total += zoom_in(x, 1 + i * step)
    return total / (count + 1)


def _shuffle(x: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Where each pixel comes from after one round of the shuffle, flat positions ``[B, H, W]``.

    Pixels are visited from the last to the first, a border left out, and each one becomes a copy of the pixel at a
    random offset from -reach to reach - 1 on each axis. A pixel that was visited before has changed already, so that
    copies form chains. They are resolved for all pixels at once: node p stands for a pixel after the round, node
    n + p for the pixel before it, and following two steps instead of one halves what is left of every chain.
    """
    batch, _, height, width = x.shape
    n = height * width
    rows, columns = (torch.arange(size, device=x.device) for size in (height, width))
    visited = ((rows > reach) & (rows <= height - reach)).unsqueeze(1) & (columns > reach) & (columns <= width - reach)
    offset = torch.randint(-reach, reach, (2, batch, height, width), device=x.device, generator=generator)
    here = rows.unsqueeze(1) * width + columns  # [H, W]
    there = torch.where(visited, here + offset[0] * width + offset[1], here)  # [B, H, W]
    changed = (there > here) & visited.flatten()[there]
    step = torch.where(changed, there, n + there).flatten(1)
    step = torch.cat([step, torch.arange(n, 2 * n, device=x.device).expand(batch, n)], dim=1)  # [B, 2 n]
    while bool((step[:, :n] < n).any()):
        step = step.gather(1, step)
    return (step[:, :n] - n).view(batch, height, width)
