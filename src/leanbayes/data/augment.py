"""Random changes to batches of images, on the device where they lie.

An augmentation is a function ``(images, generator) -> images``. What it draws comes from the generator, on the
generator's device: with one on the images' device nothing is copied between devices. The same seed gives the same
images on the same kind of device; a generator of the CPU gives the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class PadCrop:
    """Cuts a window of the image's own size at a random place from the image with a border.

    Args:
        padding: Pixels of the border on each side.
        mode: "constant" for a border of `fill`, "reflect" for a mirror image.
        fill: Value of the border.

    Shape:
        Images ``[B, C, H, W]`` of any dtype to the same.
    """

    padding: int = 4
    mode: str = "constant"
    fill: float = 0

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, not {self.padding}")
        if self.mode not in ("constant", "reflect"):
            raise ValueError(f"mode is 'constant' or 'reflect', not {self.mode!r}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Cut every image at its own place."""
        shape, device = (2, len(images)), generator.device
        return self.cut(
            images, torch.randint(-self.padding, self.padding + 1, shape, generator=generator, device=device)
        )

    def cut(self, images: Tensor, shifts: Tensor) -> Tensor:
        """Cut every image at a given place: pixels down and to the right ``[2, B]``, negative for up and left."""
        _check(images)
        rows, cols = (
            shift.to(images.device).unsqueeze(1) + torch.arange(size, device=images.device)  # [B, size]
            for shift, size in zip(shifts, images.shape[2:])
        )
        if self.mode == "reflect":
            return _gather(images, _reflect(rows, images.shape[2]), _reflect(cols, images.shape[3]))
        height, width = images.shape[2:]
        cut = _gather(images, rows.clamp(0, height - 1), cols.clamp(0, width - 1))
        inside = ((rows >= 0) & (rows < height)).unsqueeze(2) & ((cols >= 0) & (cols < width)).unsqueeze(1)
        return cut.masked_fill(~inside.unsqueeze(1), self.fill)


@dataclass(frozen=True)
class Flip:
    """Mirrors images left to right.

    Args:
        p: Probability of each image.

    Shape:
        Images ``[B, C, H, W]`` of any dtype to the same.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p must be from 0 to 1, not {self.p}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Mirror some of the images."""
        _check(images)
        chosen = torch.rand(len(images), generator=generator, device=generator.device) < self.p
        return torch.where(chosen.to(images.device).view(-1, 1, 1, 1), images.flip(3), images)


class Chain:
    """One augmentation after another.

    Args:
        *steps: Augmentations, the first one first.

    Example:
        >>> import torch
        >>> standard = Chain(PadCrop(4), Flip())
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> standard(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, *steps: Augmentation) -> None:
        self.steps: Sequence[Augmentation] = steps

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Apply every step."""
        for step in self.steps:
            images = step(images, generator)
        return images

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.steps))})"


def standard(shape: Sequence[int]) -> Chain:
    """The usual crops and flips of natural images: a border of an eighth of the shorter side, every other one mirrored.

    Args:
        shape: Of one image, ``(C, H, W)``.

    Returns:
        The augmentation.

    Example:
        >>> standard((3, 32, 32))
        Chain(PadCrop(padding=4, mode='constant', fill=0), Flip(p=0.5))
    """
    return Chain(PadCrop(max(1, min(shape[1:]) // 8)), Flip())


def _check(images: Tensor) -> None:
    if images.dim() != 4:
        raise ValueError(f"augmentation takes batches of images [B, C, H, W], not shape {tuple(images.shape)}")


def _reflect(index: Tensor, size: int) -> Tensor:
    """Indices outside ``range(size)`` mirrored at the outermost pixels."""
    if size == 1:
        return torch.zeros_like(index)
    period = 2 * (size - 1)
    index = index.remainder(period)
    return torch.where(index < size, index, period - index)


def _gather(images: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Pixels at ``rows`` ``[B, H]`` and ``cols`` ``[B, W]`` of each image."""
    batch = torch.arange(images.shape[0], device=images.device).view(-1, 1, 1, 1)
    channels = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
    return images[batch, channels, rows[:, None, :, None], cols[:, None, None, :]]
