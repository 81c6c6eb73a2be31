"""Linear maps on images that several corruptions share: blurs, zoom, motion, and what lies beyond the border."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

# Beyond the border: "edge" repeats the last pixel, "mirror" reflects at its centre, "symmetric" at its outer side.
Border = Literal["edge", "mirror", "symmetric"]


def border_index(index: Tensor, size: int, border: Border) -> Tensor:
    """Indices into ``range(size)`` that stand for indices anywhere."""
    if border == "edge" or size == 1:
        return index.clamp(0, size - 1)
    period, last = (2 * size - 2, 2 * size - 2) if border == "mirror" else (2 * size, 2 * size - 1)
    index = index.remainder(period)
    return torch.where(index < size, index, last - index)


def gaussian_kernel(std: float, radius: int) -> Tensor:
    """A normalised Gaussian at the whole numbers from -radius to radius, float64 on the CPU."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / std) ** 2)
    return weights / weights.sum()


def gaussian_blur(x: Tensor, std: float, truncate: float = 4.0, border: Border = "edge") -> Tensor:
    """Gaussian blur over the last two axes, cut off at `truncate` standard deviations.

    Each axis is one matrix, border included, so that blurs much wider than the image cost no more than others.
    """
    radius = int(truncate * std + 0.5)
    if radius == 0:
        return x
    kernel = gaussian_kernel(std, radius)
    rows, columns = (_band_matrix(size, kernel, border).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.mT


def _band_matrix(size: int, kernel: Tensor, border: Border) -> Tensor:
    radius = len(kernel) // 2
    source = torch.arange(size).unsqueeze(1) + torch.arange(-radius, radius + 1)  # [size, taps]
    matrix = torch.zeros(size, size, dtype=kernel.dtype)
    return matrix.scatter_add_(1, border_index(source, size, border), kernel.expand(size, -1))


def disc_kernel(radius: float, alias_std: float) -> Tensor:
    """A normalised disc with a smoothed edge, ``[K, K]`` in float64 on the CPU.

    The smoothing is a Gaussian of 3 x 3 pixels, 5 x 5 for discs of a radius over 8.
    """
    reach = math.floor(radius)
    squares = torch.arange(-reach, reach + 1, dtype=torch.float64).square()
    disc = (squares.unsqueeze(1) + squares <= radius**2).double()
    margin = 1 if radius <= 8 else 2
    smooth = gaussian_kernel(alias_std, margin)
    return _smoothed(F.pad(disc / disc.sum(), [margin] * 4), smooth)


def _smoothed(kernel: Tensor, smooth: Tensor) -> Tensor:
    matrix = _band_matrix(len(kernel), smooth, "edge")
    return matrix @ kernel @ matrix.mT


def correlate(x: Tensor, kernel: Tensor, border: Border = "mirror") -> Tensor:
    """Correlation of every image with a kernel ``[K, K]`` of odd size, through the Fourier transform.

    Unlike a convolution on recent GPUs this never rounds to fewer bits.
    """
    height, width = x.shape[-2:]
    radius = len(kernel) // 2
    rows, columns = (
        border_index(torch.arange(-radius, size + radius, device=x.device), size, border) for size in (height, width)
    )
    padded = x[..., rows, :][..., columns]
    shape = padded.shape[-2:]
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(kernel.to(x), s=shape).conj()
    return torch.fft.irfft2(spectrum, s=shape)[..., :height, :width]


def zoom_in(x: Tensor, factor: float) -> Tensor:
    """The middle of each image enlarged linearly to at least the image's size, and its middle cut out."""
    sizes = x.shape[-2:]
    inner = [math.ceil(size / factor) for size in sizes]
    outer = [round(size * factor) for size in inner]
    cut = _centre(x, inner)
    return _centre(F.interpolate(cut, size=outer, mode="bilinear", align_corners=True), list(sizes))


def _centre(x: Tensor, sizes: list[int]) -> Tensor:
    top, left = ((have - want) // 2 for have, want in zip(x.shape[-2:], sizes))
    return x[..., top : top + sizes[0], left : left + sizes[1]]


def motion_kernel(radius: float, std: float) -> Tensor:
    """The normalised weights of a trace that fades from the pixel onwards, float64 on the CPU."""
    steps = torch.arange(2 * math.ceil(radius) + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / std) ** 2)
    return weights / weights.sum()


def motion_blur_along(x: Tensor, radius: float, std: float, degrees: Tensor) -> Tensor:
    """Blur along a direction per image, ``[B]`` in degrees: a one-sided Gaussian at the pixels nearest to the line."""
    angle = torch.deg2rad(degrees.to(x.dtype))
    kernel = motion_kernel(radius, std)
    steps = torch.arange(len(kernel), device=x.device)
    down, right = (torch.ceil(steps * part.unsqueeze(1) - 0.5).long() for part in (angle.sin(), angle.cos()))
    height, width = x.shape[-2:]
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    out = torch.zeros_like(x)
    for step, weight in enumerate(kernel.tolist()):
        row = border_index(rows + down[:, step, None], height, "edge")  # [B, H]
        column = border_index(columns + right[:, step, None], width, "edge")  # [B, W]
        out += weight * take_pixels(x, row.unsqueeze(2) * width + column.unsqueeze(1))
    return out


def take_pixels(x: Tensor, index: Tensor) -> Tensor:
    """Pixels of each image ``[B, C, H, W]`` at flat positions ``[B, H, W]``, the same in every channel."""
    flat = index.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, flat).view_as(x)
