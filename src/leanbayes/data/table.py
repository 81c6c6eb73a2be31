"""Your own CSV, TSV and Parquet files: one row per example, one column for the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._arrow import CSV_ENDINGS, read_cells
from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice
from leanbayes.data._classes import on_classes, one_spelling
from leanbayes.data._columns import RawColumn, infer_columns, number_text
from leanbayes.data._dataset import Dataset, Part, Task
from leanbayes.data._encode import encode_columns, listed, short
from leanbayes.data._groups import find_groups, group_numbers, on_parts, on_ungrouped
from leanbayes.data._leaks import on_leaks
from leanbayes.data._order import find_order, on_order
from leanbayes.data._parts import divide_rows
from leanbayes.data._prepare import (
    FREE_TEXT,
    fit_columns,
    gaps,
    handle_missing,
    how_read,
    infinite,
    screen,
    unusable,
    written_alike,
)
from leanbayes.data._registry import register_file
from leanbayes.data._roles import choose_target, is_free_text, unknown_columns, unknown_target
from leanbayes.data._summary_rows import without_summary_rows
from leanbayes.data._suspects import on_far_values
from leanbayes.data._table_errors import Problem, TableError, raise_all
from leanbayes.data._target_scale import SCALES, choose_log

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
    check_choice("missing", missing, _MISSING)
    check_choice("target_scale", target_scale, SCALES)
    if task is not None:
        check_choice("task", task, _TASKS)
    if any(isinstance(names, str) for names in (categories, numbers, drop, na)):
        raise TypeError("categories, numbers, drop and na are lists of strings, not a single string")
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target is the name of one column, not {target!r}; train one model for each")
    file_options = {"separator": separator, "header": header, "na": list(na)}
    cells = read_cells(path, **file_options)
    notes = list(cells.notes)
    columns = without_summary_rows(_without_empty_rows(infer_columns(cells, numbers), notes), notes)
    given = {"drop": [column.name for column in columns if column.name in drop], "na": na}
    goal, features, problems = _divide(
        columns, target, categories, numbers, drop, [n for n in (order_by, group_by) if n is not None], path, notes
    )
    features = [column for column in features if column.name != group_by]
    chosen = {*categories, *numbers}
    features, ids, left = screen(features, chosen)
    order, wrong = (None, []) if order_by is None else find_order(columns, order_by, path.name)
    problems += wrong
    group, wrong = (None, []) if group_by is None else find_groups(columns, group_by, path.name)
    problems += wrong + _clashes(goal, group_by, order_by, {*categories, *numbers}, path.name)
    problems += unusable(features, categories, numbers, path)
    if missing == "error":
        problems += gaps([*([] if goal is None else [goal]), *features], path)
    if goal is None:
        raise_all(problems, path.name, given)
    assert goal is not None
    in_file = features
    # Rows go from the groups as from the inputs.
    features = features if group is None else [*features, group]
    if order is not None:
        goal, features = goal.take(order), [column.take(order) for column in features]
    goal, features = handle_missing(goal, features, missing, path, notes)
    groups = None
    if group is not None:
        *features, group = features
        groups = group_numbers(group.values.tolist())
    y, names, task = _targets(goal, task, path, problems, notes)
    raise_all(problems, path.name, given)
    notes += _on_target(goal)
    # Everything is fitted on the training rows, so the parts are chosen before there are inputs.
    train_rows, valid_rows, test_rows = divide_rows(
        len(y),
        valid,
        test,
        seed,
        labels=None if task == "regression" else y,
        groups=None if groups is None else groups.numpy(),
        ordered=order is not None,
    )
    if order is not None:
        notes.append(f"in the order of {order_by!r}: the last rows are for testing, those before them for validation")
    elif groups is None:
        notes += on_order(in_file)
    log_targets = task == "regression" and choose_log(target_scale, y, train_rows, goal.name, notes)
    used, fitted = fit_columns(features, train_rows, set(categories), chosen, missing == "impute", left, notes)
    if left:
        notes.append(f"left out: {listed([f'{name!r} ({why})' for name, why in left.items()])}")
    if not used:
        reason = f" ({notes[-1]})" if left else ""
        advice = "name those to use all the same as numbers or categories"
        if set(left.values()) == {FREE_TEXT}:
            advice = "turn texts into numbers first, such as sentence embeddings"
        raise TableError(
            f"{path.name} has no column besides the target {goal.name!r} that a network could learn from{reason}; "
            f"{advice}"
        )
    notes += on_leaks(goal.name, y, used, train_rows)
    notes += on_far_values([*used, *([goal] if task == "regression" else [])])
    x = torch.from_numpy(encode_columns(used, fitted, len(y)))
    train, valid_part, test_part = (
        Part(x[rows], torch.from_numpy(y[rows]), None if groups is None else groups[rows])
        for rows in (train_rows, valid_rows, test_rows)
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
        ids=ids if group_by is None else [*ids, group_by],
        group=group_by,
        log_targets=log_targets,
        target_unit=goal.format.unit,
        notes=notes,
    )


def _without_empty_rows(columns: list[RawColumn], notes: list[str]) -> list[RawColumn]:
    empty = np.all([column.missing for column in columns], axis=0)
    if not empty.any() or empty.all():
        return columns
    count = int(empty.sum())
    notes.append(f"{count} empty {'row was' if count == 1 else 'rows were'} left out")
    return [column.take(~empty) for column in columns]


def _divide(
    columns: list[RawColumn],
    target: str | None,
    categories: Sequence[str],
    numbers: Sequence[str],
    drop: Sequence[str],
    order: Sequence[str],
    path: Path,
    notes: list[str],
) -> tuple[RawColumn | None, list[RawColumn], list[Problem]]:
    """The target, the columns that may be inputs, and what stands in the way."""
    source = path.name
    if len(columns) == 1:
        text = f"{source} has a single column, {short(columns[0].name)}, where inputs and a target are needed"
        more = "; if its cells are not separated by a comma, a semicolon, a tab or a bar, name their separator"
        return None, [], [Problem(text + more * (path.suffix != ".parquet"))]
    problems = [] if target is None else unknown_target(target, columns, source)
    if problems:
        target = problems[0].fixes.get("target", target)  # for what else is wrong with it
    problems += unknown_columns([*categories, *numbers, *drop, *order], columns, source)
    both = sorted({*categories, *numbers} & {*drop} | {*categories} & {*numbers})
    if both:
        text = f"column {both[0]!r} of {source} is named in more than one of categories, numbers and drop"
        problems.append(Problem(text))
    goal = next((column for column in columns if column.name == target), None)
    if target is None:
        goal, note, problem = choose_target([c for c in columns if c.name not in drop], source)
        notes += [note] if note else []
        problems += [] if problem is None else [problem]
    if goal is not None and goal.name in (*categories, *numbers, *drop):
        text = f"the target {goal.name!r} of {source} is among the categories, the numbers or the columns to leave out"
        problems.append(Problem(text))
    features = [column for column in columns if column is not goal and column.name not in drop]
    if not features and goal is not None:
        text = f"{source} has no column besides the target {goal.name!r}; inputs are needed too"
        problems.append(Problem(text))
    return goal, features, problems


def _clashes(
    goal: RawColumn | None, group_by: str | None, order_by: str | None, chosen: set[str], source: str
) -> list[Problem]:
    """What groups do not go with."""
    if group_by is None:
        return []
    found = []
    if order_by is not None:
        text = f"group_by={group_by!r} tests on whole groups, and order_by={order_by!r} on the last rows; name one"
        found.append(Problem(text))
    if group_by in chosen or (goal is not None and goal.name == group_by):
        what = "the target" if group_by not in chosen else "one of the columns to use"
        text = f"the groups of {source} are the values of {group_by!r}, which is no input and cannot be {what} as well"
        found.append(Problem(text))
    return found


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
