"""Your own NPZ files: inputs `x` and targets `y`, with or without a test part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice
from leanbayes.data._dataset import Dataset, Inputs, Part, Task
from leanbayes.data._npz import read_npz
from leanbayes.data._registry import register_file


@register_file(".npz")
def read_arrays(
    path: Path,
    *,
    task: Task | None = None,
    classes: int | None = None,
    valid: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """Arrays ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test`` and perhaps ``x_valid``, ``y_valid``.

    Inputs of two axes are a table, of three axes of bytes grey images, of three axes of floats time series, of four
    axes images (channels first or last). Whole numbers and texts in ``y`` are classes, real numbers a regression.

    Args:
        path: The file.
        task: "classification", "binary" or "regression", to override this.
        classes: Number of classes; one more than the largest label when None.
        valid: Share or number of training examples for validation, if the file has none.
        test: The same for the test part.
        seed: Of these choices.
        normalise: "standard", "none", and for images "unit" or "symmetric".
    """
    if task is not None:
        check_choice("task", task, ("classification", "binary", "regression"))
    arrays = read_npz(path)
    names = [""] if "x" in arrays else ["_train", "_valid", "_test"]
    needed = [f"{key}{names[0]}" for key in "xy"]
    if missing := [key for key in needed if key not in arrays]:
        raise ValueError(
            f"{path.name} lacks the array {missing[0]!r}; an NPZ file holds x and y, or x_train, y_train, x_test and "
            f"y_test, and this one holds {', '.join(arrays) or 'nothing'}"
        )
    train = {key: arrays[key] for key in needed}
    inputs = _kind(train[needed[0]], path)
    written = _replace_texts(arrays, [f"y{name}" for name in names]) if train[needed[1]].dtype.kind == "U" else []
    whole = arrays[needed[1]].dtype.kind in "iub"
    task = task or ("classification" if whole else "regression")
    parts = [_part(arrays, name, inputs, task, path) for name in names]
    assert parts[0] is not None
    return assemble(
        path.name,
        task,
        inputs,
        parts[0],
        parts[2] if len(parts) > 1 else None,
        parts[1] if len(parts) > 1 else None,
        valid=valid,
        test_share=test,
        seed=seed,
        normalise=normalise,
        class_names=[] if task == "regression" else written or _class_names(parts[0].y, task, classes),
    )


def inputs_of(x: NDArray[Any], inputs: Inputs, name: str) -> Tensor:
    """Inputs as a tensor: images with channels first, numbers as float64, ids as int64."""
    if x.dtype.kind not in "fiub":
        raise ValueError(f"the inputs of {name} must be numbers, not {x.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"the inputs of {name} hold NaN or infinite values; remove those examples")
    if inputs == "text":
        return torch.tensor(x.astype(np.int64))
    if inputs != "image":
        return torch.tensor(x.astype(np.float64))
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = np.moveaxis(x, 3, 1)
    return torch.tensor(np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32)))


def _kind(x: NDArray[Any], path: Path) -> Inputs:
    if x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8):
        return "image"
    if x.ndim not in (2, 3):
        raise ValueError(f"the inputs of {path.name} must have 2, 3 or 4 axes, not the shape {x.shape}")
    return "table" if x.ndim == 2 else "series"


def _part(arrays: dict[str, NDArray[Any]], name: str, inputs: Inputs, task: Task, path: Path) -> Part | None:
    x, y = arrays.get(f"x{name}"), arrays.get(f"y{name}")
    if x is None or y is None:
        return None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(x) != len(y):
        hint = "; a model predicts one target" if y.ndim == 2 and len(x) == len(y) else ""
        raise ValueError(
            f"y{name} of {path.name} must hold one target for each of the {len(x)} inputs, not {y.shape}{hint}"
        )
    if task == "regression":
        targets = y.astype(np.float64)
    elif (y != np.round(y)).any():
        raise ValueError(f"y{name} of {path.name} must hold whole numbers for a {task}, or pass task='regression'")
    else:
        targets = y.astype(np.int64)
    return Part(inputs_of(x, inputs, path.name), torch.from_numpy(targets))


def _replace_texts(arrays: dict[str, NDArray[Any]], keys: list[str]) -> list[str]:
    """Names of the classes, ascending, by whose numbers targets of text are replaced."""
    there = [key for key in keys if key in arrays]
    names = np.unique(np.concatenate([arrays[key].ravel() for key in there]))
    arrays.update({key: np.searchsorted(names, arrays[key]) for key in there})
    return names.tolist()


def _class_names(labels: Tensor, task: Task, classes: int | None) -> list[str]:
    count = classes or (2 if task == "binary" else int(labels.max()) + 1 if len(labels) else 0)
    return [str(number) for number in range(max(count, 0))]
