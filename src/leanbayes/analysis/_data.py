"""Labelled data as the analyses take it, and what is checked of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from leanbayes._inputs import check_no_nan, find_rows, tensors
from leanbayes._rows import map_rows
from leanbayes._sampling import current_sampling
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


def check_count(name: str, value: int | None, optional: bool = True) -> None:
    """Raises unless a number of things is a whole number from 1, or None where that is left to us."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is a whole number from 1{', or None to choose' if optional else ''}, not {value!r}")


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


def pairs(x: Any, y: Any, size: int) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and targets of any kind, some rows after the others.

    Args:
        x: A tensor, a mapping or tuple of tensors, or a loader of inputs and targets.
        y: The targets; None for a loader.
        size: Rows at once, where there is no loader to decide.
    """
    if y is None:
        yield from _pairs_of_loader(x)
        return
    if not isinstance(y, Tensor):
        raise TypeError(f"y is a tensor, not {type(y).__name__}; torch.as_tensor makes one of an array")
    if not isinstance(x, (Tensor, Mapping, tuple, list)):
        raise TypeError(f"x is a tensor, a mapping or tuple of tensors, or a loader without y, not {type(x).__name__}")
    axis = current_sampling().batch_dim
    count = find_rows(x, axis)
    if not count or y.shape[:1] != (count,):
        raise ValueError(f"expected a target for each of {count or 0} inputs, got y of shape {tuple(y.shape)}")
    if any(t.dim() <= axis or t.shape[axis] != count for t in tensors(x)):
        yield x, y
        return
    for start in range(0, count, size):
        some = min(size, count - start)
        yield map_rows(x, lambda t, start=start, some=some: t.narrow(axis, start, some), axis), y[start : start + some]


def _pairs_of_loader(loader: Any) -> Iterator[tuple[Any, Tensor]]:
    if isinstance(loader, (Tensor, Mapping, tuple)) or not isinstance(loader, Iterable):
        raise TypeError(f"targets are missing: pass y, or a loader of (inputs, targets), not a {type(loader).__name__}")
    found = False
    for batch in loader:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
            raise TypeError(f"the loader has to give (inputs, targets), but gave a {type(batch).__name__}")
        found = True
        yield batch[0], batch[1]
    if not found:
        raise ValueError("the loader gave no batch; at least one example is needed")


def on_device(x: Any, device: torch.device) -> Any:
    """A nested input with all its tensors on a device."""
    if isinstance(x, (Tensor, PackedSequence)):
        return x.to(device)  # pyright: ignore[reportArgumentType]  (torch declares a packed sequence's dtype alone)
    if isinstance(x, Mapping):
        return {name: on_device(value, device) for name, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(on_device(value, device) for value in x))
    return type(x)(on_device(value, device) for value in x) if isinstance(x, (tuple, list)) else x
