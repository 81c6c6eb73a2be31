"""From arrays that a reader found to a `Dataset`: parts held out, scaling fitted on the training part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._checks import check_classes, check_targets
from leanbayes.data._dataset import Column, Dataset, Inputs, Part, Schema, Task
from leanbayes.data._normalise import Affine, Normalisation
from leanbayes.data._rows import Rows
from leanbayes.data._split import TEST_STREAM, VALID_STREAM, hold_out

# Images read to fit the scaling of a set that is not in memory.
_SAMPLED_IMAGES = 1000
_PIXEL_SCALES = {"unit": Affine(axis=1), "symmetric": Affine((0.5,), (0.5,), axis=1)}


def assemble(
    name: str,
    task: Task,
    inputs: Inputs,
    train: Part,
    test: Part | None = None,
    valid_part: Part | None = None,
    *,
    valid: float = 0.1,
    test_share: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
    class_names: Sequence[str] = (),
    columns: Sequence[Column] = (),
    shape: Sequence[int] | None = None,
    target: str | None = None,
    vocabulary: Sequence[str] = (),
    missing: str = "error",
    file_options: Mapping[str, Any] | None = None,
    ids: Sequence[str] = (),
    target_unit: str = "",
    group: str | None = None,
    log_targets: bool = False,
    notes: Sequence[str] = (),
) -> Dataset:
    """Check the targets, hold out what is not there yet, fit the scaling, and put everything together.

    Args:
        name: What was loaded.
        task: What the targets are.
        inputs: What the inputs are.
        train: Examples for training and, as far as they are missing, for the other parts.
        test: The published test part.
        valid_part: The published validation part.
        valid: Share or number of training examples held out where there is no validation part.
        test_share: The same for the test part, taken first.
        seed: Of the choice of examples.
        normalise: "standard" (mean 0 and standard deviation 1), "unit" (images from 0 to 1), "symmetric" (images
            from -1 to 1) or "none".
        class_names: One per class.
        columns: Columns of a table or measurements of a series.
        shape: Shape of an example; that of the first one when None.
        target: Name of the target's column.
        vocabulary: Words of a text set.
        missing: What became of missing values.
        file_options: How a table's file was read.
        ids: Columns of a table that name its rows.
        target_unit: What stands beside the numbers of the target's column.
        group: Column of a table whose values name the groups that rows belong to.
        log_targets: Whether the logarithm of the targets of a regression is scaled.
        notes: Sentences for the user.

    Returns:
        The data set.
    """
    for part in (train, valid_part, test):
        if part is not None:
            check_targets(part.y, task, len(class_names), name)
    check_classes(train.y, task, class_names, name)
    if test is None:
        train, test = _divide(train, task, test_share, seed, TEST_STREAM)
    if valid_part is None:
        train, valid_part = _divide(train, task, valid, seed, VALID_STREAM)
    if not len(train):
        raise ValueError(f"{name} has no training examples")
    schema = Schema(
        task=task,
        inputs=inputs,
        shape=tuple(shape if shape is not None else train.x[0].shape),
        class_names=tuple(class_names),
        normalisation=Normalisation(
            _input_scale(train.x, inputs, normalise, columns, missing in ("mean", "impute"), seed),
            Affine.fit(train.y, log=log_targets) if task == "regression" and normalise != "none" else None,
        ),
        columns=tuple(columns),
        target=target,
        vocabulary=tuple(vocabulary),
        missing=missing,
        file_options=dict(file_options or {}),
        ids=tuple(ids),
        target_unit=target_unit,
        group=group,
    )
    return Dataset(name, schema, train, valid_part, test, tuple(notes))


def _divide(part: Part, task: Task, share: float, seed: int, stream: int) -> tuple[Part, Part]:
    labels = None if task == "regression" else part.y.numpy()
    kept, held = hold_out(len(part), share, seed, stream=stream, labels=labels)
    # All rows in their order: no need to copy them.
    return (part if not len(held) else part.take(kept)), part.take(held)


def _input_scale(
    x: Tensor | Rows, inputs: Inputs, normalise: str, columns: Sequence[Column], fill: bool, seed: int
) -> Affine | None:
    allowed = ("standard", "none", *(_PIXEL_SCALES if inputs == "image" else ()))
    if normalise not in allowed:
        raise ValueError(
            f"normalise is one of {', '.join(allowed)} for inputs of the kind {inputs!r}, not {normalise!r}"
        )
    if inputs == "text":
        return None
    if normalise == "none":
        # Bytes still become floats, and missing values the number 0.
        return Affine(axis=1) if inputs == "image" else Affine(fill=fill)
    if normalise != "standard":
        return _PIXEL_SCALES[normalise]
    if inputs == "image":
        return Affine.fit(_sample(x, seed), axis=1)
    assert isinstance(x, Tensor)
    keep = [not scaled for column in columns for scaled in column.scaled]
    return Affine.fit(x, axis=-1, fill=fill, keep=keep)


def _sample(x: Tensor | Rows, seed: int) -> Tensor:
    if isinstance(x, Tensor):
        return x
    chosen = np.random.RandomState(seed).permutation(len(x))[:_SAMPLED_IMAGES]
    return x[torch.from_numpy(np.sort(chosen))]
