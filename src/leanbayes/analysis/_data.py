"""Labelled data as the analyses take it, and what is checked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._inputs import check_no_nan
from leanbayes.objectives.likelihoods import check_labels


def check_labelled(x: Any, y: Any, batch_size: int | None = None) -> None:
    """Raises unless there is a class label for each of some inputs."""
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a tensor, not {type(value).__name__}; torch.as_tensor makes one of an array")
    if x.dim() == 0 or len(x) == 0:
        raise ValueError(f"expected at least one input, got x of shape {tuple(x.shape)}")
    if y.shape != (len(x),) or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(
            f"expected one class label for each of {len(x)} inputs, whole numbers, got {tuple(y.shape)} of {y.dtype}"
        )
    check_count("batch_size", batch_size)
    check_no_nan(x)


def check_count(name: str, value: int | None) -> None:
    """Raises unless a number of things at once is a whole number from 1, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is a whole number from 1, or None to choose, not {value!r}")


def check_scores(shape: torch.Size, y: Tensor) -> None:
    """Raises unless outputs of a shape ``[B, C]`` are the scores of the classes that the labels name."""
    if len(shape) != 2 or shape[1] < 2:
        raise ValueError(f"expected a classifier with outputs [B, C] of two classes or more, got {tuple(shape)}")
    check_labels(y, shape[1])


def batches(model: nn.Module, x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows after the others, on the model's device, the labels as torch wants them."""
    device = next((parameter.device for parameter in model.parameters()), x.device)
    for rows, labels in zip(x.split(size), y.split(size), strict=True):
        yield rows.to(device), labels.to(device, torch.int64)
