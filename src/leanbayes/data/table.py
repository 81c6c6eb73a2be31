"""CSV, TSV and Parquet files of one's own: one row per example, one column for the target."""

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
from leanbayes.data._columns import RawColumn, infer_columns, number_text
from leanbayes.data._dataset import Column, Dataset, Part, Task
from leanbayes.data._encode import (
    MAX_CATEGORIES,
    encode_columns,
    fit_column,
    infinite_row,
    listed,
    short,
    top_categories,
)
from leanbayes.data._registry import register_file
from leanbayes.data._roles import (
    LEAST_COVERED,
    MOST_FREQUENT,
    Problem,
    TableError,
    choose_target,
    is_free_text,
    is_id,
    raise_all,
    unknown_columns,
)
from leanbayes.data._split import TEST_STREAM, VALID_STREAM, hold_out

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
    valid: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """Rows of numbers, texts, dates, and yes or no, with one target.

    What a column holds is found from its values. Texts become one input per category; dates become the days since the
    first one, and sines and cosines of the time of year, the weekday and the time of day; pairs such as yes and no
    become 0 and 1. Columns that name the rows, that hold another text in most rows, or one value in all of them, are
    left out. The notes of the data set say what was done. Categories, means and the first date are those of the
    training rows alone, and the schema keeps them, so that `read_new` does exactly the same to new rows.

    Args:
        path: The file. The encoding may be UTF-8, UTF-16 with its mark, or Windows-1252.
        target: Name of the target's column; where None one that is called so ("target", "label", "class", "y", ...),
            else the last one.
        task: "classification", "binary" or "regression". When None, a target of text, or of whole numbers with at most
            20 values, is a classification.
        categories: Columns whose values become one input each (0 or 1), also where they are numbers or many.
        numbers: Columns to use as numbers, also where they seem to name the rows.
        drop: Columns to leave out.
        missing: "impute" puts the training mean in the place of a missing number, no category in that of a category,
            and adds an input that is 1 where a value is missing; "mean" does without that input; "drop" leaves out
            the rows; "error" reports them. Rows without a target are always left out.
        separator: Between the cells of a CSV file; found in its first lines when None.
        header: Whether the first line of a CSV file has the names.
        na: Texts that stand for a missing value, besides the usual ones.
        valid: Share or number of training rows for validation.
        test: Share or number of all rows for test.
        seed: Of these choices.
        normalise: "standard" or "none".

    Raises:
        TableError: All that stands in the way, in one message, with the options that solve it.
    """
    check_choice("missing", missing, _MISSING)
    if task is not None:
        check_choice("task", task, _TASKS)
    if any(isinstance(names, str) for names in (categories, numbers, drop, na)):
        raise TypeError("categories, numbers, drop and na are lists of texts, not one text")
    file_options = {"separator": separator, "header": header, "na": list(na)}
    cells = read_cells(path, **file_options)
    notes = list(cells.notes)
    columns = _without_empty_rows(infer_columns(cells), notes)
    dropped = [column.name for column in columns if column.name in drop]
    goal, features, problems = _divide(columns, target, categories, numbers, drop, path, notes)
    chosen = {*categories, *numbers}
    features, ids, left = _screen(features, chosen)
    problems += _unusable(features, categories, numbers, path)
    if missing == "error":
        problems += _gaps([*([] if goal is None else [goal]), *features], path)
    if goal is None:
        raise_all(problems, path.name, dropped)
        raise AssertionError("a target that is missing is a problem")
    goal, features, ids_kept = _handle_missing(goal, features, ids, missing, path, notes)
    y, names, task = _targets(goal, task, path, problems, notes)
    raise_all(problems, path.name, dropped)
    labels = None if task == "regression" else y
    # Everything is fitted on the training rows, so the parts are chosen before there are inputs.
    rest, test_rows = hold_out(len(y), test, seed, stream=TEST_STREAM, labels=labels)
    kept, held = hold_out(len(rest), valid, seed, stream=VALID_STREAM, labels=None if labels is None else labels[rest])
    train_rows, valid_rows = rest[kept], rest[held]
    used, fitted = _fit(features, train_rows, set(categories), chosen, missing == "impute", left, notes)
    if left:
        notes.append(f"left out: {listed([f'{name!r} ({why})' for name, why in left.items()])}")
    if not used:
        reason = f" ({notes[-1]})" if left else ""
        raise TableError(
            f"{path.name} has no column besides the target {goal.name!r} that a network could learn from{reason}; "
            "the options numbers and categories name columns to use all the same"
        )
    x = torch.from_numpy(encode_columns(used, fitted, len(y)))
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
        ids=[column.name for column in ids_kept],
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
    path: Path,
    notes: list[str],
) -> tuple[RawColumn | None, list[RawColumn], list[Problem]]:
    """The target, the columns that may be inputs, and what stands in the way."""
    source = path.name
    problems = unknown_columns([*([] if target is None else [target]), *categories, *numbers, *drop], columns, source)
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


def _screen(features: list[RawColumn], chosen: set[str]) -> tuple[list[RawColumn], list[RawColumn], dict[str, str]]:
    """The columns to use, those that name the rows, and why others are left out, by name."""
    used, ids, left = [], [], {}
    for column in features:
        if column.missing.all():
            left[column.name] = "no values"
        elif column.name in chosen:
            used.append(column)
        elif is_id(column):
            ids.append(column)
            left[column.name] = "names or counts the rows; predictions keep it"
        elif is_free_text(column):
            left[column.name] = "another text in most rows"
        else:
            used.append(column)
    return used, ids, left


def _unusable(
    features: list[RawColumn], categories: Sequence[str], numbers: Sequence[str], path: Path
) -> list[Problem]:
    """Columns that cannot be what they should."""
    found = []
    for column in features:
        name, fix = column.name, {"drop": [column.name]}
        if name in numbers and (column.is_text or column.format.kind == "date"):
            example = short(str(column.texts[~column.missing][0]))
            found.append(Problem(f"column {name!r} of {path.name} holds no numbers but, for example, {example}", fix))
        count = len(set(column.texts.tolist()) - {None}) if name in categories else 1
        if count > MAX_CATEGORIES:
            text = f"column {name!r} of {path.name} has {count} values, more than the {MAX_CATEGORIES} of categories"
            found.append(Problem(text, fix))
        row = infinite_row(column)
        if row is not None:
            found.append(Problem(f"column {name!r} of {path.name} holds an infinite number in row {row + 1}", fix))
    return found


def _gaps(columns: list[RawColumn], path: Path) -> list[Problem]:
    """The problem of missing values, where they are not to be filled."""
    there = [f"{int(c.missing.sum())} in {c.name!r}" for c in columns if c.missing.any()]
    return [Problem(f"{path.name} has missing values ({listed(there)})", {"missing": "impute"})] if there else []


def _handle_missing(
    goal: RawColumn, features: list[RawColumn], ids: list[RawColumn], missing: str, path: Path, notes: list[str]
) -> tuple[RawColumn, list[RawColumn], list[RawColumn]]:
    """Rows without a target go, and those with other gaps where that is asked for."""
    without = goal.missing
    if without.all():
        raise TableError(f"the target {goal.name!r} of {path.name} has no values", {"target": "NAME"})
    if without.any():
        notes.append(f"{int(without.sum())} of {len(without)} rows were left out, as they have no {goal.name!r}")
        goal, features, ids = goal.take(~without), *([c.take(~without) for c in some] for some in (features, ids))
    counts = {column.name: int(column.missing.sum()) for column in features}
    there = listed([f"{count} in {name!r}" for name, count in counts.items() if count])
    if not there or missing == "error":
        return goal, features, ids
    if missing != "drop":
        how = "the training mean" if missing == "mean" else "the training mean, and flagged"
        notes.append(f"missing values were filled with {how}: {there}")
        return goal, features, ids
    bad = np.any([column.missing for column in features], axis=0)
    if bad.all():
        raise TableError(
            f"every row of {path.name} has a missing value ({there}); pass missing='impute', or drop columns",
            {"missing": "impute"},
        )
    notes.append(f"{int(bad.sum())} of {len(bad)} rows were left out for missing values: {there}")
    return goal.take(~bad), [c.take(~bad) for c in features], [c.take(~bad) for c in ids]


def _targets(
    goal: RawColumn, task: Task | None, path: Path, problems: list[Problem], notes: list[str]
) -> tuple[NDArray[Any], list[str], Task]:
    """Targets as numbers, names of the classes, and what the task is; what is wrong is added to the problems."""
    # Yes and no, and dates, are classes by their names.
    is_number = goal.format.kind == "number" and not goal.is_text
    values: list[str | float] = (goal.values if is_number else goal.texts).tolist()
    names = sorted(set(values))
    few = goal.whole and len(names) <= min(_FEW_CLASSES, max(2, len(values) // 2))
    guessed = task is None
    if task is None:
        task = "regression" if is_number and not few else "classification"
    where, other = f"the target {goal.name!r} of {path.name}", {"target": "NAME"}
    if task == "regression":
        if not is_number:
            text = f"{where} holds text ({short(str(names[0]))}), of which there is no regression"
            problems.append(Problem(text, {"task": "classification"}))
            return np.zeros(len(values)), [], task
        if infinite_row(goal) is not None:
            problems.append(Problem(f"{where} holds an infinite number in row {(infinite_row(goal) or 0) + 1}"))
        return goal.values.astype(np.float64), [], task
    if len(names) < 2:
        problems.append(Problem(f"{where} has only the value {names[0]!r}; two classes are needed", other))
    elif is_number and len(names) > max(_FEW_CLASSES, len(values) // 2):
        text = f"{where} has {len(names)} values in {len(values)} rows, too many for classes"
        problems.append(Problem(text, {"task": "regression"}))
    elif not is_number and is_free_text(goal):
        problems.append(Problem(f"{where} has {len(names)} texts in {len(values)} rows, too many for classes", other))
    elif guessed and is_number and len(names) > 2:
        notes.append(
            f"the {len(names)} values of {goal.name!r} are taken for classes, and by the task 'regression' for numbers"
        )
    number = {name: position for position, name in enumerate(names)}
    labels = np.array([number[value] for value in values], dtype=np.int64)
    return labels, [name if isinstance(name, str) else str(number_text(name)) for name in names], task


def _fit(
    features: list[RawColumn],
    rows: NDArray[np.int64],
    categories: set[str],
    chosen: set[str],
    gaps: bool,
    left: dict[str, str],
    notes: list[str],
) -> tuple[list[RawColumn], list[Column]]:
    """Columns with how they are encoded; what training rows cannot teach is added to what is left out."""
    used, fitted, said = [], [], []
    for column in features:
        name, known = column.name, ~column.missing[rows]
        values = column.texts[rows][known] if column.is_text else column.values[rows][known]
        if not known.any():
            left[name] = "no values in the training rows"
            continue
        if name not in chosen and known.all() and len(set(values.tolist())) == 1:
            left[name] = "the same value in all training rows"
            continue
        most = None
        if column.is_text and name not in categories:
            counts = top_categories(column, rows)
            most = (
                min(MOST_FREQUENT, sum(count > 1 for count in counts.values())) if len(counts) > _FEW_CLASSES else None
            )
            covered = sum(list(counts.values())[:most])
            if covered < LEAST_COVERED * len(values):
                left[name] = "a text of few rows in most rows"
                continue
            if most is not None and most < len(counts):
                said.append(f"{name!r} (the {most} most frequent of {len(counts)})")
        code = fit_column(column, rows, category=name in categories, most=most, gaps=gaps)
        if code.kind == "date" and column.format.either:
            said.append(f"{name!r} (read as {'month/day' if code.format.startswith('%m') else 'day/month'})")
        if code.others:
            said.append(f"{name!r} (missing: {listed([short(text) for text in code.others])})")
        used.append(column)
        fitted.append(code)
    kinds = {"category": "categories", "boolean": "yes or no", "date": "dates"}
    for kind, title in kinds.items():
        there = [repr(code.name) for code in fitted if code.kind == kind and code.name not in categories]
        if there:
            notes.append(f"{title}: {listed(there)}")
    commas = [repr(code.name) for code in fitted if code.source == "number" and code.format.endswith(",5")]
    if commas:
        notes.append(f"numbers with a decimal comma: {listed(commas)}")
    if said:
        notes.append(f"in detail: {listed(said)}")
    return used, fitted
