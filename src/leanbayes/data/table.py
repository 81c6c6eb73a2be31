"""Your own CSV, TSV and Parquet files: one row per example, one column for the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.data._arrow import CSV_ENDINGS, read_cells
from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice
from leanbayes.data._classes import on_classes, one_spelling
from leanbayes.data._columns import RawColumn, infer_columns, number_text
from leanbayes.data._dataset import Dataset, Part, Task
from leanbayes.data._encode import encode_columns, listed, short
from leanbayes.data._groups import group_numbers, on_parts, on_ungrouped
from leanbayes.data._leaks import on_leaks
from leanbayes.data._order import on_order
from leanbayes.data._parts import divide_rows
from leanbayes.data._prepare import (
    FREE_TEXT,
    fit_columns,
    gaps,
    handle_missing,
    how_read,
    infinite,
    written_alike,
)
from leanbayes.data._registry import register_file
from leanbayes.data._roles import is_free_text
from leanbayes.data._summary_rows import without_summary_rows
from leanbayes.data._suspects import on_far_values
from leanbayes.data._table_errors import Problem, TableError, raise_all
from leanbayes.data._target_scale import SCALES, choose_log
from leanbayes.data._uses import Uses, find_uses

# Whole numbers of at most so many values are classes, unless `task` says otherwise.
_FEW_CLASSES = 20
_TASKS = ("classification", "binary", "regression")
_MISSING = ("impute", "mean", "drop", "error")


@register_file(*CSV_ENDINGS, ".parquet")
def read_table(
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    categories: Sequence[str] = (),
    numbers: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: str = "impute",
    separator: str | None = None,
    header: bool = True,
    na: Sequence[str] = (),
    order_by: str | None = None,
    group_by: str | None = None,
    target_scale: str = "auto",
    valid: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """Rows of numbers, texts, dates, and yes or no, with one target.

    What a column holds is detected from its values. Texts become one input per category; dates become the days since
    the first one, and sines and cosines of the time of year, the weekday and the time of day; pairs such as yes and no
    become 0 and 1. Columns that identify the rows, hold a different text in most rows, or a single value in all of
    them, are left out. The notes of the data set say what was done. Categories, means and the first date come from the
    training rows alone, and the schema keeps them, so `read_new` treats new rows in exactly the same way.

    Args:
        path: The file. The encoding may be UTF-8, UTF-16 with its mark, or Windows-1252.
        target: Name of the target's column; None takes one with a typical name ("target", "label", "class", "y", ...),
            or else the last one.
        task: "classification", "binary" or "regression". When None, a target of text, or of whole numbers with at most
            20 values, is a classification.
        categories: Columns whose values become one input each (0 or 1), even if they are numbers, or many.
        numbers: Columns to use as numbers, even if they seem to identify the rows.
        drop: Columns to leave out.
        missing: "impute" replaces a missing number by the training mean, and a missing category by none, and adds an
            input that is 1 where a value is missing; "mean" does without that input; "drop" leaves out the rows;
            "error" reports them. Rows without a target are always left out.
        separator: Separator of the cells of a CSV file; None detects it in the first lines.
        header: Whether the first line of a CSV file has the names.
        na: Texts that mean a missing value, besides the usual ones.
        order_by: A column of dates or numbers to sort the rows by: the last ones become the test part, those before
            them the validation part. None draws both among all rows.
        group_by: A column whose values name what rows belong to, such as a patient. All rows of one are in the same
            part, so the figures are for new ones; the column is no input.
        target_scale: "log" predicts the logarithm of the target of a regression, "linear" the target as it is; "auto"
            chooses what explains the targets of the training rows clearly better. Figures are in the target's units.
        valid: Share or number of training rows for validation.
        test: Share or number of all rows for test.
        seed: Of these choices.
        normalise: "standard" or "none".

    Raises:
        TableError: Everything that stands in the way, in one message, with the options that solve it.
    """
    _check_options(target, task, (categories, numbers, drop, na), missing, target_scale)
    file_options = {"separator": separator, "header": header, "na": list(na)}
    cells = read_cells(path, **file_options)
    notes = list(cells.notes)
    columns = without_summary_rows(_without_empty_rows(infer_columns(cells, numbers), notes), notes)
    given = {"drop": [column.name for column in columns if column.name in drop], "na": na}
    uses = find_uses(
        columns,
        path,
        notes,
        target=target,
        categories=categories,
        numbers=numbers,
        drop=drop,
        order_by=order_by,
        group_by=group_by,
    )
    problems = uses.problems
    if missing == "error":
        problems += gaps([*([] if uses.goal is None else [uses.goal]), *uses.features], path)
    if uses.goal is None:
        raise_all(problems, path.name, given)
    goal, features, groups = _rows(uses, missing, path, notes)
    y, names, task = _targets(goal, task, path, problems, notes)
    raise_all(problems, path.name, given)
    notes += _on_target(goal)
    # Everything is fitted on the training rows, so the parts are chosen before there are inputs.
    parts = divide_rows(
        len(y),
        valid,
        test,
        seed,
        labels=None if task == "regression" else y,
        groups=None if groups is None else groups.numpy(),
        ordered=uses.order is not None,
    )
    if uses.order is not None:
        notes.append(f"in the order of {order_by!r}: the last rows are for testing, those before them for validation")
    elif groups is None:
        notes += on_order(uses.features)
    train_rows = parts[0]
    log_targets = task == "regression" and choose_log(target_scale, y, train_rows, goal.name, notes)
    chosen = {*categories, *numbers}
    used, fitted = fit_columns(features, train_rows, set(categories), chosen, missing == "impute", uses.left, notes)
    _check_left(used, uses.left, goal, path, notes)
    notes += on_leaks(goal.name, y, used, train_rows)
    notes += on_far_values([*used, *([goal] if task == "regression" else [])])
    x, targets = torch.from_numpy(encode_columns(used, fitted, len(y))), torch.from_numpy(y)
    train, valid_part, test_part = (
        Part(x[rows], targets[rows], None if groups is None else groups[rows]) for rows in parts
    )
    if group_by is not None:
        notes.append(on_parts(group_by, train, valid_part, test_part))
    elif order_by is None:
        notes += on_ungrouped([column for column in columns if column.name != goal.name])
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
        ids=uses.ids,
        group=group_by,
        log_targets=log_targets,
        target_unit=goal.format.unit,
        notes=notes,
    )


def _check_options(
    target: str | None, task: Task | None, lists: Sequence[Sequence[str]], missing: str, target_scale: str
) -> None:
    check_choice("missing", missing, _MISSING)
    check_choice("target_scale", target_scale, SCALES)
    if task is not None:
        check_choice("task", task, _TASKS)
    if any(isinstance(names, str) for names in lists):
        raise TypeError("categories, numbers, drop and na are lists of strings, not a single string")
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target is the name of one column, not {target!r}; train one model for each")


def _without_empty_rows(columns: list[RawColumn], notes: list[str]) -> list[RawColumn]:
    empty = np.all([column.missing for column in columns], axis=0)
    if not empty.any() or empty.all():
        return columns
    count = int(empty.sum())
    notes.append(f"{count} empty {'row was' if count == 1 else 'rows were'} left out")
    return [column.take(~empty) for column in columns]


def _rows(uses: Uses, missing: str, path: Path, notes: list[str]) -> tuple[RawColumn, list[RawColumn], Tensor | None]:
    """The target and the inputs, row by row as they are used, and numbers of the groups."""
    goal, group = uses.goal, uses.group
    assert goal is not None
    # Rows go from the groups as from the inputs.
    features = uses.features if group is None else [*uses.features, group]
    if uses.order is not None:
        goal, features = goal.take(uses.order), [column.take(uses.order) for column in features]
    goal, features = handle_missing(goal, features, missing, path, notes)
    if group is None:
        return goal, features, None
    *features, group = features
    return goal, features, group_numbers(group.values.tolist())


def _check_left(used: list[RawColumn], left: dict[str, str], goal: RawColumn, path: Path, notes: list[str]) -> None:
    """Note which columns are left out, and raise where that is all of them."""
    if left:
        notes.append(f"left out: {listed([f'{name!r} ({why})' for name, why in left.items()])}")
    if used:
        return
    reason = f" ({notes[-1]})" if left else ""
    advice = "name those to use all the same as numbers or categories"
    if set(left.values()) == {FREE_TEXT}:
        advice = "turn texts into numbers first, such as sentence embeddings"
    raise TableError(
        f"{path.name} has no column besides the target {goal.name!r} that a network could learn from{reason}; {advice}"
    )


def _on_target(goal: RawColumn) -> list[str]:
    """How the numbers of the target are written."""
    notes = [f"the target {goal.name!r} is in {goal.format.unit}"] if goal.format.unit else []
    if symbols := written_alike(goal):
        notes.append(f"the target {goal.name!r} has some values with {' or '.join(symbols)}, all read alike")
    if examples := how_read(goal):
        notes.append(f"values of the target {goal.name!r}: {listed(examples)}")
    return notes


def _targets(
    goal: RawColumn, task: Task | None, path: Path, problems: list[Problem], notes: list[str]
) -> tuple[NDArray[Any], list[str], Task]:
    """Targets as numbers, names of the classes, and what the task is; what is wrong is added to the problems."""
    # Yes and no, and dates, are classes by their names.
    is_number = goal.format.kind == "number" and not goal.is_text
    values: list[str | float] = (goal.values if is_number else goal.texts).tolist()
    if goal.format.kind == "boolean":
        values = [*one_spelling(goal.texts.tolist())]
    names = sorted(set(values))
    few = goal.whole and len(names) <= min(_FEW_CLASSES, max(2, len(values) // 2))
    guessed = task is None
    if task is None:
        task = "regression" if is_number and not few else "classification"
    where, other = f"the target {goal.name!r} of {path.name}", {"target": "NAME"}
    if goal.format.kind == "date" and (task == "regression" or (guessed and len(names) > _FEW_CLASSES)):
        text = (
            f"{where} holds dates, which cannot be predicted; turn them into numbers, such as days since another date"
        )
        problems.append(Problem(text))
        return np.zeros(len(values)), [], task
    if task == "regression":
        if not is_number:
            text = f"{where} holds text ({short(str(names[0]))}), which no regression predicts"
            problems.append(Problem(text, {"task": "classification"}))
            return np.zeros(len(values)), [], task
        problems += infinite(goal, where)
        return goal.values.astype(np.float64), [], task
    if len(names) < 2:
        only = names[0] if isinstance(names[0], str) else number_text(names[0])
        problems.append(Problem(f"{where} has only the value {only!r}; two classes are needed", other))
    elif is_number and len(names) > max(_FEW_CLASSES, len(values) // 2):
        text = f"{where} has {len(names)} values in {len(values)} rows, too many for classes"
        problems.append(Problem(text, {"task": "regression"}))
    elif not is_number and is_free_text(goal):
        problems.append(Problem(f"{where} has {len(names)} texts in {len(values)} rows, too many for classes", other))
    elif guessed and is_number and len(names) > 2:
        notes.append(
            f"the {len(names)} values of {goal.name!r} are taken as classes; for numbers, pass task='regression'"
        )
    written = [name if isinstance(name, str) else str(number_text(name)) for name in names]
    notes += on_classes(goal.name, written, [values.count(name) for name in names])
    number = {name: position for position, name in enumerate(names)}
    labels = np.array([number[value] for value in values], dtype=np.int64)
    return labels, written, task
