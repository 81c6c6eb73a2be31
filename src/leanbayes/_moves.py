"""Moving stacks of weights: to another device, dtype or memory format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

# Axes of a stack of weights of two-dimensional convolutions: as many as those of a three-dimensional one.
_STACKED_IMAGES = 5


def of_stacks(move: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """What `nn.Module._apply` is given, for tensors that hold several weights side by side.

    ``to(memory_format=torch.channels_last)`` tells images from volumes by their number of axes, and would fail for a
    stack of weights for images; it gets them as one weight with as many more outputs.
    """

    def move_stack(t: Tensor) -> Any:
        return move(t.flatten(0, 1)).unflatten(0, t.shape[:2]) if t.dim() == _STACKED_IMAGES else move(t)

    return move_stack
