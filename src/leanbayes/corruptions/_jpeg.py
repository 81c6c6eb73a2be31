"""JPEG as arithmetic on batches: what compression loses, without the lossless coding that follows it.

Baseline JPEG as libjpeg does it by default: YCbCr, chroma at half the resolution (4:2:0), the discrete cosine
transform of blocks of 8 x 8, the standard quantisation tables (ITU-T T.81, annex K) scaled by quality, and linear
interpolation of chroma. libjpeg's integer transforms round a little differently.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
    (99, 99, 99, 99, 99, 99, 99, 99),
)

# Full-range BT.601: Y, Cb and Cr from R, G and B (JFIF), around 0 for the last two.
YCBCR = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


def quantisation_table(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """A table ``[8, 8]`` scaled by quality from 1 to 100, whole numbers from 1 to 255."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(table) * percent + 50) // 100).clamp(1, 255)


def jpeg(x: Tensor, quality: int) -> Tensor:
    """Grey or RGB images ``[B, C, H, W]`` in [0, 1] through JPEG; the results are multiples of 1/255."""
    height, width = x.shape[2:]
    pixels = (255 * x).round()
    if x.shape[1] == 1:
        return _lossy(pixels - 128, LUMA_TABLE, quality).add(128).round().clamp(0, 255) / 255
    colours = torch.tensor(YCBCR, dtype=x.dtype, device=x.device)
    levels = torch.einsum("ij,bjhw->bihw", colours, pixels).round()
    luma = _lossy(levels[:, :1] - 128, LUMA_TABLE, quality) + 128
    chroma = _lossy(_halve(levels[:, 1:]), CHROMA_TABLE, quality).round().clamp(-128, 127)
    chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear", align_corners=False).round()
    levels = torch.cat([luma.round().clamp(0, 255), chroma[:, :, :height, :width]], dim=1)
    return torch.einsum("ij,bjhw->bihw", torch.linalg.inv(colours), levels).round().clamp(0, 255) / 255


def _lossy(levels: Tensor, table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """Planes ``[B, C, H, W]`` with their cosine coefficients rounded to multiples of the table's entries."""
    height, width = levels.shape[2:]
    padded = _pad_to(levels, 8)
    basis = _cosines().to(levels)
    steps = quantisation_table(table, quality).to(levels)
    blocks = padded.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)  # [B, C, H/8, W/8, 8, 8]
    blocks = basis.mT @ ((basis @ blocks @ basis.mT / steps).round() * steps) @ basis
    return blocks.transpose(3, 4).flatten(4, 5).flatten(2, 3)[:, :, :height, :width]


def _cosines() -> Tensor:
    """The orthonormal cosine transform of length 8, ``[frequency, position]``."""
    k = torch.arange(8, dtype=torch.float64)
    basis = torch.cos(math.pi / 8 * k.unsqueeze(1) * (k + 0.5)) / 2
    basis[0] /= math.sqrt(2)
    return basis


def _pad_to(x: Tensor, multiple: int) -> Tensor:
    """Images whose last row and column are repeated until the sides are multiples."""
    bottom, right = (-size % multiple for size in x.shape[2:])
    return F.pad(x, (0, right, 0, bottom), mode="replicate")


def _halve(x: Tensor) -> Tensor:
    """Means over 2 x 2 pixels as whole numbers, halves rounded up in every other column."""
    _, _, height, width = x.shape
    # The last column is repeated before the means are taken, the last row afterwards.
    padded = F.pad(x, (0, -width % 16, 0, height % 2), mode="replicate")
    sums = 4 * F.avg_pool2d(padded, 2)
    bias = 1 + torch.arange(sums.shape[3], device=x.device) % 2
    return ((sums.round() + bias) / 4).floor()
