"""The functions behind the names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes.corruptions._constants import NAMES, Constants

# Images [B, C, H, W] of float32 or float64, the constants of one severity, where draws come from. The result may leave
# [0, 1]; it is clipped by the caller.
Corruption = Callable[[Tensor, Constants, torch.Generator], Tensor]

CORRUPTIONS: dict[str, Corruption] = {}


def register(function: Corruption) -> Corruption:
    """Add a corruption under the name of its function; a name that is taken or has no constants is an error."""
    name = getattr(function, "__name__", repr(function))
    if name in CORRUPTIONS or name not in NAMES:
        raise ValueError(f"corruption {name!r} is already registered or has no constants; the names are {NAMES}")
    CORRUPTIONS[name] = function
    return function
