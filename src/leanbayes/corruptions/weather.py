"""Snow, frost, fog, and more light."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from leanbayes.corruptions._constants import Constants, is_small
from leanbayes.corruptions._filters import motion_blur_along, zoom_in
from leanbayes.corruptions._registry import register

# The parts of red, green and blue in luma (ITU-R BT.601).
LUMA = (0.299, 0.587, 0.114)


@register
def snow(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Whitens the image and lets blurred flakes fall, each also turned by half a turn."""
    mean, std, zoom, threshold, radius, motion_std, share = constants
    noise = torch.randn((len(x), 1, *x.shape[2:]), dtype=x.dtype, device=x.device, generator=generator)
    flakes = zoom_in(mean + std * noise, zoom)
    flakes = torch.where(flakes < threshold, 0, flakes).clamp(0, 1)
    degrees = -45 - 90 * torch.rand(len(x), device=x.device, generator=generator)
    flakes = motion_blur_along(flakes, radius, motion_std, degrees)
    white = torch.maximum(x, 1.5 * _luma(x) + 0.5)
    return share * x + (1 - share) * white + flakes + flakes.flip(2, 3)


@register
def frost(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Adds a texture of ice crystals to the darkened image.

    The textures are generated, one per image; the published ones are crops of five photographs. The weights are the
    published ones, but figures on this type are not comparable with published figures.
    """
    weight, frost_weight = constants
    texture = _frost_texture(x, generator)
    if x.shape[1] == 3:
        # White where the ice is thick, blue where it is thin.
        texture = torch.cat([texture**1.2, texture**1.05, texture**0.9], dim=1)
    return weight * x + frost_weight * texture


@register
def fog(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Adds a plasma fractal and scales each image back to its largest value."""
    thickness, decay = constants
    height, width = x.shape[2:]
    plasma = _plasma(x, 2 ** math.ceil(math.log2(max(height, width))), decay, generator)
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    return (x + thickness * plasma[:, :, :height, :width]) * brightest / (brightest + thickness)


@register
def brightness(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Shifts the value in HSV and keeps hue and saturation: all channels are scaled alike, and black becomes grey."""
    (shift,) = constants
    value = x.amax(dim=1, keepdim=True)
    target = (value + shift).clamp(max=1)
    return torch.where(value > 0, x * (target / value.clamp(min=torch.finfo(x.dtype).tiny)), target)


def _luma(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(LUMA, dtype=x.dtype, device=x.device).view(3, 1, 1)).sum(dim=1, keepdim=True)


def _plasma(x: Tensor, size: int, decay: float, generator: torch.Generator) -> Tensor:
    """Plasma fractals ``[B, 1, size, size]`` from 0 to 1 by the diamond-square algorithm on a torus.

    Each level doubles the grid: new points are the mean of their four neighbours plus uniform noise, whose height
    shrinks by the square of `decay` from level to level.
    """
    grid = torch.zeros(len(x), 1, 1, dtype=x.dtype, device=x.device)
    height = 1.0
    while grid.shape[1] < size:
        shape = (3, *grid.shape)
        noise = height * (2 * torch.rand(shape, dtype=x.dtype, device=x.device, generator=generator) - 1)
        below, right = grid.roll(-1, 1), grid.roll(-1, 2)
        middle = (grid + below + right + below.roll(-1, 2)) / 4 + noise[0]
        across = (grid + right + middle + middle.roll(1, 1)) / 4 + noise[1]
        down = (grid + below + middle + middle.roll(1, 2)) / 4 + noise[2]
        even = torch.stack([grid, across], dim=3).flatten(2)  # [B, n, 2 n]
        odd = torch.stack([down, middle], dim=3).flatten(2)
        grid = torch.stack([even, odd], dim=2).flatten(1, 2)  # [B, 2 n, 2 n]
        height /= decay**2
    low, high = grid.amin(dim=(1, 2), keepdim=True), grid.amax(dim=(1, 2), keepdim=True)
    return ((grid - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)).unsqueeze(1)


def _frost_texture(x: Tensor, generator: torch.Generator) -> Tensor:
    """Ice ``[B, 1, H, W]`` from 0 to 1: ridges of smooth noise at four scales, thick in some places and thin in others.

    The coarsest ridges are 60 pixels apart, and 12 in small images, for which the published textures are scaled by
    one fifth.
    """
    pixels = 12 if is_small(*x.shape[2:]) else 60
    ridges, total = torch.zeros_like(x[:, :1]), 0.0
    for octave in range(4):
        weight = 0.6**octave
        ridges += weight * torch.exp(-3 * _smooth_noise(x, pixels / 2**octave, generator).abs())
        total += weight
    thick = 0.5 + 0.5 * torch.sigmoid(2 * _smooth_noise(x, 2 * pixels, generator))
    return (thick * (0.15 + 1.4 * ridges / total)).clamp(0, 1)


def _smooth_noise(x: Tensor, pixels: float, generator: torch.Generator) -> Tensor:
    """Noise ``[B, 1, H, W]`` that varies over a number of pixels."""
    cells = [math.ceil(size / pixels) + 1 for size in x.shape[2:]]
    coarse = torch.randn((len(x), 1, *cells), dtype=x.dtype, device=x.device, generator=generator)
    return F.interpolate(coarse, size=x.shape[2:], mode="bicubic", align_corners=True)
