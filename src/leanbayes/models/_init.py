"""Initialisation that several models share."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn


def init_he_(model: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """Draws the weights of convolutions and dense layers from N(0, 2 / fan) and sets their biases to zero."""
    _init_kernels_(model, lambda weight: nn.init.kaiming_normal_(weight, mode=mode, nonlinearity="relu"))


def init_normal_(model: nn.Module, std: float) -> None:
    """Draws the weights of convolutions and dense layers from N(0, std^2) and sets their biases to zero."""
    _init_kernels_(model, lambda weight: nn.init.normal_(weight, std=std))


def _init_kernels_(model: nn.Module, draw_: Callable[[Tensor], Tensor]) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            draw_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
