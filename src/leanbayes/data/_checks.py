"""Checks that several readers share; every message is one sentence that names the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_targets(y: Tensor, task: str, classes: int, name: str) -> None:
    """Raise where targets do not fit the task."""
    if y.dim() != 1:
        raise ValueError(f"the targets of {name} must be one number per example, not of shape {tuple(y.shape)}")
    if task == "regression":
        wrong = int((~torch.isfinite(y)).sum())
        if wrong:
            raise ValueError(f"{wrong} targets of {name} are NaN or infinite; remove those examples")
        return
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"the labels of {name} must be whole numbers, not {y.dtype}")
    if task == "binary" and classes != 2:
        raise ValueError(f"a binary task has 2 classes, but {name} has {classes}; use task='classification'")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        row = int(((y < 0) | (y >= classes)).nonzero()[0])
        raise ValueError(
            f"the labels of {name} must be from 0 to {classes - 1}, but the one at position {row} is {int(y[row])}"
        )


def check_classes(y: Tensor, task: str, names: Sequence[str], name: str) -> None:
    """Raise where training examples all belong to one class."""
    if task == "regression" or not len(y) or bool((y != y[0]).any()):
        return
    only = names[int(y[0])]
    raise ValueError(f"all training examples of {name} belong to the class {only!r}; two classes are needed")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise where an option has none of its values."""
    if value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def check_counts(images: int, labels: int, name: str) -> None:
    """Raise where images and labels differ in number."""
    if images != labels:
        raise ValueError(f"{name} holds {images} images but {labels} labels; one of its files is wrong")
