"""Corrupting a batch of images by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from leanbayes.corruptions._constants import NAMES, constants_for
from leanbayes.corruptions._registry import CORRUPTIONS
from leanbayes.noise import full_precision

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(x: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupts a batch of images.

    Draws come from a generator for this call only, on the device of the images, whose seed is derived from `seed`,
    `name` and `severity`: the same call gives the same images, and the global random state is left alone. Devices draw
    differently; to compare runs on several devices, corrupt on the CPU and move the result. If you corrupt a data set
    in parts, use a different seed for each part, or all parts share the same noise.

    Args:
        x: Images ``[B, C, H, W]`` with values in [0, 1], grey (C = 1) or RGB (C = 3), before any normalisation.
        name: One of `NAMES`.
        severity: From 1 to 5. Images whose sides are at most 64 pixels take the constants of CIFAR-10-C, others
            those of ImageNet-C.
        seed: Any whole number.

    Returns:
        Images of the same shape, dtype and device with values in [0, 1]; without a gradient.

    Raises:
        ValueError: If the name is unknown, the severity is not from 1 to 5, or the images are not of the form above.
        TypeError: If the images are not floating point, or severity or seed are not whole numbers.

    Example:
        >>> import torch
        >>> corrupt(torch.full((1, 1, 2, 2), 0.5), "brightness", severity=2)
        tensor([[[[0.6000, 0.6000],
                  [0.6000, 0.6000]]]])
    """
    _check_request(name, severity, seed)
    _check_images(x)
    if not len(x):
        return x.detach().clone()
    constants = constants_for(name, severity, x.shape[2], x.shape[3])
    generator = torch.Generator(device=x.device).manual_seed(_derived_seed(seed, name, severity))
    with torch.no_grad():
        return CORRUPTIONS[name](full_precision(x), constants, generator).clamp(0, 1).to(x.dtype)


def iter_corruptions(
    x: Tensor, severities: Sequence[int] = SEVERITIES, names: Sequence[str] = NAMES, seed: int = 0
) -> Iterator[tuple[str, int, Tensor]]:
    """Yields a batch of images under every corruption type at every severity, one after another.

    Args:
        x: Images as in :func:`corrupt`.
        severities: From 1 to 5 each.
        names: Corruption types, of `NAMES`.
        seed: As in :func:`corrupt`.

    Returns:
        Triples of name, severity and corrupted images, severities innermost.

    Example:
        >>> import torch
        >>> images = torch.rand(2, 3, 8, 8)
        >>> [(name, severity) for name, severity, _ in iter_corruptions(images, (1, 5), ("fog", "snow"))]
        [('fog', 1), ('fog', 5), ('snow', 1), ('snow', 5)]
    """
    requests = [(name, severity) for name in names for severity in severities]
    for name, severity in requests:
        _check_request(name, severity, seed)
    _check_images(x)
    return ((name, severity, corrupt(x, name, severity, seed)) for name, severity in requests)


def _derived_seed(seed: int, name: str, severity: int) -> int:
    digest = hashlib.blake2b(f"{seed} {name} {severity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _check_request(name: str, severity: int, seed: int) -> None:
    if name not in CORRUPTIONS:
        raise ValueError(f"there is no corruption named {name!r}; the names are {', '.join(NAMES)}")
    for label, value in (("severity", severity), ("seed", seed)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{label} must be a whole number, not {value!r}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be from 1 to 5, not {severity}")


def _check_images(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"images must be floating point with values in [0, 1], not {x.dtype}; divide bytes by 255")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:]:
        raise ValueError(f"images must be [B, C, H, W] with 1 or 3 channels, not of shape {tuple(x.shape)}")
    if not len(x):
        return
    low, high = torch.stack(torch.aminmax(x.detach())).tolist()
    if low != low:
        raise ValueError("images must have values in [0, 1], but some are NaN")
    if low < 0 or high > 1:
        raise ValueError(
            f"images must have values in [0, 1], but they go from {low:.3g} to {high:.3g}; "
            f"corrupt them before they are normalised"
        )
