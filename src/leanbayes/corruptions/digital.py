"""Contrast, elastic distortion, coarse pixels, and JPEG."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leanbayes.corruptions._constants import Constants
from leanbayes.corruptions._filters import gaussian_blur
from leanbayes.corruptions._jpeg import jpeg
from leanbayes.corruptions._registry import register


@register
def contrast(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Shrinks values towards the mean of their channel."""
    (factor,) = constants
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * factor + mean


@register
def elastic_transform(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """A random affine map, and then a smooth random displacement of every pixel."""
    side = min(x.shape[2:])
    height, smoothness, shift = (share * side for share in constants)
    x = _sample(x, _affine_positions(x, shift, generator), mirror=True)
    field = 2 * torch.rand((len(x), 2, *x.shape[2:]), dtype=x.dtype, device=x.device, generator=generator) - 1
    moved = _pixel_positions(x) + height * gaussian_blur(field, smoothness, truncate=3, border="symmetric")
    return _sample(x, moved, mirror=False)


@register
def pixelate(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """Down-sampling with a box filter, and up-sampling by the nearest pixel."""
    (share,) = constants
    rows, columns = (_pixelate_matrix(size, max(1, int(size * share))).to(x) for size in x.shape[2:])
    return rows @ x @ columns.mT


@register
def jpeg_compression(x: Tensor, constants: Constants, generator: torch.Generator) -> Tensor:
    """JPEG at a quality; see `leanbayes.corruptions._jpeg`."""
    return jpeg(x, int(constants[0]))


def _pixel_positions(x: Tensor) -> Tensor:
    """Row and column of every pixel, ``[2, H, W]``."""
    rows, columns = (torch.arange(size, dtype=x.dtype, device=x.device) for size in x.shape[2:])
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"))


def _affine_positions(x: Tensor, shift: float, generator: torch.Generator) -> Tensor:
    """Where every pixel comes from, ``[B, 2, H, W]``, when three points near the corners move by up to `shift`."""
    arm = max(1, min(x.shape[2:]) // 3)
    centre = torch.tensor([size // 2 for size in x.shape[2:]], dtype=x.dtype, device=x.device).view(2, 1, 1)
    # One point per column, in homogeneous coordinates around the centre.
    points = x.new_tensor([[arm, arm, -arm], [arm, -arm, -arm], [1, 1, 1]])
    draw = 2 * torch.rand((len(x), 2, 3), dtype=x.dtype, device=x.device, generator=generator) - 1
    moved = points + F.pad(shift * draw, (0, 0, 0, 1))
    back = (points @ torch.linalg.inv(moved))[:, :2]  # [B, 2, 3]
    relative = _pixel_positions(x) - centre
    return torch.einsum("bij,jhw->bihw", back[:, :, :2], relative) + back[:, :, 2, None, None] + centre


def _sample(x: Tensor, positions: Tensor, mirror: bool) -> Tensor:
    """Bilinear values at row and column ``[B, 2, H, W]``.

    Beyond the border the image is reflected at the centre of its last pixel (`mirror`) or at that pixel's outer side.
    """
    size = torch.tensor(x.shape[2:], dtype=x.dtype, device=x.device).view(2, 1, 1)
    if mirror:
        scaled = 2 * positions / (size - 1).clamp(min=1) - 1
    else:
        scaled = (2 * positions + 1) / size - 1
    grid = scaled.flip(1).permute(0, 2, 3, 1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=mirror)


def _pixelate_matrix(size: int, left: int) -> Tensor:
    """Down to `left` pixels and up again, ``[size, size]`` in float64 on the CPU.

    A pixel belongs to the box that holds its centre; a centre between two boxes counts to the first on the way down
    and to the second on the way up, as in Pillow.
    """
    centres = (2 * torch.arange(size) + 1) * left  # in units of half a pixel over `size`
    down, up = (centres - 1) // (2 * size), centres // (2 * size)
    member = (up.unsqueeze(1) == down).double()
    return member / member.sum(dim=1, keepdim=True)
