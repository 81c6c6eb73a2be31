"""CSV, TSV and Parquet files of one's own: one row per example, one column for the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._arrow import CSV_ENDINGS, RawColumn, read_columns
from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice
from leanbayes.data._dataset import Column, Dataset, Part, Task
from leanbayes.data._encode import check_finite, check_numeric, encode_columns, fit_column, number_text
from leanbayes.data._registry import register_file
from leanbayes.data._split import TEST_STREAM, VALID_STREAM, hold_out

# Whole numbers of at most so many values are classes, unless `task` says otherwise.
_FEW_CLASSES = 20
_TASKS = ("classification", "binary", "regression")


@register_file(*CSV_ENDINGS, ".parquet")
def read_table(
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: str = "error",
    separator: str | None = None,
    header: bool = True,
    na: Sequence[str] = (),
    valid: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """Rows of numbers with one target.

    Args:
        path: The file.
        target: Name of the target's column; the last one when None.
        task: "classification", "binary" or "regression". When None, a target of text, or of whole numbers with at most
            20 values, is a classification.
        categories: Columns whose values become one input each (0 or 1); the values are those of the training rows.
        drop: Columns to leave out.
        missing: "error" reports missing values; "drop" leaves out their rows; "mean" puts the training mean in the
            place of a number, and no category in that of a category.
        separator: Between the cells of a CSV file; found in its first line when None.
        header: Whether the first line of a CSV file has the names.
        na: Texts that stand for a missing value, besides the usual ones.
        valid: Share or number of training rows for validation.
        test: Share or number of all rows for test.
        seed: Of these choices.
        normalise: "standard" or "none".
    """
    check_choice("missing", missing, ("error", "drop", "mean"))
    if task is not None:
        check_choice("task", task, _TASKS)
    file_options = {"separator": separator, "header": header, "na": list(na)}
    columns = read_columns(path, **file_options)
    goal, features = _divide(columns, target, categories, drop, path)
    for column in features:
        if column.name not in categories:
            check_numeric(column, path.name)
    check_finite([goal, *features], path.name)
    goal, features, notes = _handle_missing(goal, features, missing, path)
    y, names, task = _targets(goal, task, path)
    labels = None if task == "regression" else y
    # Categories are fitted on the training rows, so the parts are chosen before there are inputs.
    rest, test_rows = hold_out(len(y), test, seed, stream=TEST_STREAM, labels=labels)
    kept, held = hold_out(len(rest), valid, seed, stream=VALID_STREAM, labels=None if labels is None else labels[rest])
    train_rows, valid_rows = rest[kept], rest[held]
    fitted = [fit_column(column, train_rows, column.name in categories, path.name) for column in features]
    _check_seen(features, fitted, train_rows, path)
    x = torch.from_numpy(encode_columns(features, fitted, len(y)))
    train, valid_part, test_part = (
        Part(x[rows], torch.from_numpy(y[rows])) for rows in (train_rows, valid_rows, test_rows)
    )
    return assemble(
        path.name,
        task,
        "table",
        train,
        test_part,
        valid_part,
        normalise=normalise,
        class_names=names,
        columns=fitted,
        target=goal.name,
        missing=missing,
        file_options=file_options,
        notes=notes,
    )


def _divide(
    columns: list[RawColumn], target: str | None, categories: Sequence[str], drop: Sequence[str], path: Path
) -> tuple[RawColumn, list[RawColumn]]:
    if isinstance(categories, str) or isinstance(drop, str):
        raise TypeError("categories and drop are lists of names of columns, not one text")
    by_name = {column.name: column for column in columns}
    for name in (*([] if target is None else [target]), *categories, *drop):
        if name not in by_name:
            raise ValueError(f"{path.name} has no column {name!r}; its columns are {_listed(list(by_name))}")
    goal = by_name[target] if target is not None else next((c for c in columns[::-1] if c.name not in drop), None)
    if goal is None or goal.name in (*categories, *drop):
        raise ValueError(f"the target {target!r} of {path.name} is among the categories or the columns to leave out")
    features = [column for column in columns if column.name not in (goal.name, *drop)]
    if not features:
        raise ValueError(f"{path.name} has no column besides the target {goal.name!r}; inputs are needed too")
    return goal, features


def _handle_missing(
    goal: RawColumn, features: list[RawColumn], missing: str, path: Path
) -> tuple[RawColumn, list[RawColumn], list[str]]:
    counts = {column.name: int(column.missing.sum()) for column in (goal, *features)}
    there = {name: count for name, count in counts.items() if count}
    if not there:
        return goal, features, []
    listed = _listed([f"{count} in {name!r}" for name, count in there.items()])
    if missing == "error":
        raise ValueError(
            f"{path.name} has missing values ({listed}); pass missing='mean' to fill them with the training mean, "
            "or missing='drop' to leave out their rows"
        )
    if missing == "mean" and counts[goal.name]:
        raise ValueError(
            f"the target {goal.name!r} of {path.name} is missing in {counts[goal.name]} rows, which cannot be filled; "
            "pass missing='drop' to leave them out"
        )
    if missing == "mean":
        return goal, features, [f"missing values were filled with the training mean: {listed}"]
    bad = np.any([column.missing for column in (goal, *features)], axis=0)
    if bad.all():
        raise ValueError(
            f"every row of {path.name} has a missing value ({listed}); pass missing='mean', or drop columns"
        )
    goal, *features = (RawColumn(c.name, c.values[~bad], c.whole) for c in (goal, *features))
    return goal, features, [f"{int(bad.sum())} of {len(bad)} rows were left out for missing values: {listed}"]


def _targets(goal: RawColumn, task: Task | None, path: Path) -> tuple[NDArray[Any], list[str], Task]:
    values: list[str | float] = goal.values.tolist()
    few = goal.whole and len(set(values)) <= _FEW_CLASSES
    if task is None:
        task = "classification" if goal.is_text or few else "regression"
    if task == "regression":
        check_numeric(goal, path.name, advice=False)
        return goal.values.astype(np.float64), [], task
    names = sorted(set(values))
    if len(names) < 2:
        raise ValueError(
            f"the target {goal.name!r} of {path.name} has only the value {names[0]!r}; two classes are needed"
        )
    if not goal.is_text and len(names) > max(_FEW_CLASSES, len(values) // 2):
        raise ValueError(
            f"the target {goal.name!r} of {path.name} has {len(names)} values in {len(values)} rows, "
            "too many for classes; pass task='regression'"
        )
    number = {name: position for position, name in enumerate(names)}
    labels = np.array([number[value] for value in values], dtype=np.int64)
    return labels, [name if isinstance(name, str) else str(number_text(name)) for name in names], task


def _check_seen(features: list[RawColumn], fitted: list[Column], rows: NDArray[np.int64], path: Path) -> None:
    """Raise where a column of numbers has none in the training rows, so that it has no mean."""
    for column, code in zip(features, fitted):
        if not code.categories and column.missing[rows].all():
            raise ValueError(
                f"column {column.name!r} of {path.name} has no values to train on; pass drop=[{column.name!r}]"
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
