"""Columns of a table that a network can learn from: which ones, what becomes of gaps, how each is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._amounts import read_examples
from leanbayes.data._columns import RawColumn
from leanbayes.data._dataset import Column
from leanbayes.data._encode import MAX_CATEGORIES, fit_column, infinite_row, listed, short, top_categories
from leanbayes.data._formats import UNIX, Format
from leanbayes.data._roles import LEAST_COVERED, is_free_text, is_id, most_categories
from leanbayes.data._table_errors import Problem, TableError
from leanbayes.data._units import mixed_symbols

# Why columns are left out whose texts are sentences.
FREE_TEXT = "another text in most rows"
# Up to so many texts, one that occurs once is a category, too.
_FEW_CATEGORIES = 20


def screen(features: list[RawColumn], chosen: set[str]) -> tuple[list[RawColumn], list[str], dict[str, str]]:
    """The columns to use, names of those that name the rows, and why others are left out, by name."""
    used, ids, left = [], [], {}
    for column in features:
        if column.missing.all():
            left[column.name] = "no values"
        elif column.name in chosen:
            used.append(column)
        elif is_id(column):
            ids.append(column.name)
            left[column.name] = "names or counts the rows; predictions keep it"
        elif is_free_text(column):
            left[column.name] = FREE_TEXT
        else:
            used.append(column)
    return used, ids, left


def unusable(features: list[RawColumn], categories: Sequence[str], numbers: Sequence[str], path: Path) -> list[Problem]:
    """Columns that cannot be what they should."""
    found = []
    for column in features:
        name, fix = column.name, {"drop": [column.name]}
        # To drop what is asked for as something else would be a problem, too.
        unasked = {
            option: [other for other in names if other != name]
            for option, names in (("categories", categories), ("numbers", numbers))
            if name in names
        }
        if name in numbers and (column.is_text or column.format.kind == "date"):
            example = short(str(column.texts[~column.missing][0]))
            found.append(
                Problem(f"column {name!r} of {path.name} holds no numbers but, for example, {example}", unasked)
            )
        count = len(set(column.texts.tolist()) - {None}) if name in categories else 1
        if count > MAX_CATEGORIES:
            text = f"column {name!r} of {path.name} has {count} values, more than the {MAX_CATEGORIES} of categories"
            found.append(Problem(text, unasked))
        found += infinite(column, f"column {name!r} of {path.name}", fix)
    return found


def infinite(column: RawColumn, where: str, fix: dict[str, Any] | None = None) -> list[Problem]:
    """The problem of infinite numbers, which may count as missing.

    Args:
        column: The column.
        where: What to call it.
        fix: What else solves it, in a file whose numbers are no texts.
    """
    row = infinite_row(column)
    if row is None:
        return []
    text = f"{where} holds an infinite number in row {row + 1}"
    if column.cells is None:
        return [Problem(text if fix else f"{text}; remove such rows", fix or {})]
    texts = set(column.cells.take(np.flatnonzero(np.isinf(column.values))).to_pylist())
    return [Problem(f"{text}, which can count as missing", {"na": sorted(texts)})]


def gaps(columns: list[RawColumn], path: Path) -> list[Problem]:
    """The problem of missing values, where they are not to be filled."""
    there = [f"{int(c.missing.sum())} in {c.name!r}" for c in columns if c.missing.any()]
    return [Problem(f"{path.name} has missing values ({listed(there)})", {"missing": "impute"})] if there else []


def handle_missing(
    goal: RawColumn, features: list[RawColumn], missing: str, path: Path, notes: list[str]
) -> tuple[RawColumn, list[RawColumn]]:
    """Rows without a target go, and those with other gaps where that is asked for."""
    without = goal.missing
    if without.all():
        raise TableError(f"the target {goal.name!r} of {path.name} has no values", {"target": "NAME"})
    if without.any():
        others = listed([short(text) for text in goal.format.others])
        nor = f" or have one that stands for none ({others})" if others else ""
        count = int(without.sum())
        lack = "was left out because it lacks" if count == 1 else "were left out because they lack"
        nor = nor.replace("have", "has") if count == 1 else nor
        notes.append(f"{count} of {len(without)} rows {lack} {goal.name!r}{nor}")
        goal, features = goal.take(~without), [column.take(~without) for column in features]
    counts = {column.name: int(column.missing.sum()) for column in features}
    there = listed([f"{count} in {name!r}" for name, count in counts.items() if count])
    if not there or missing == "error":
        return goal, features
    if missing != "drop":
        flagged = "" if missing == "mean" else " and flagged"
        notes.append(f"missing values were filled{flagged}: {there}")
        return goal, features
    bad = np.any([column.missing for column in features], axis=0)
    if bad.all():
        raise TableError(
            f"every row of {path.name} has a missing value ({there}); pass missing='impute', or drop columns",
            {"missing": "impute"},
        )
    notes.append(f"{int(bad.sum())} of {len(bad)} rows were left out for missing values: {there}")
    return goal.take(~bad), [column.take(~bad) for column in features]


def fit_columns(
    features: list[RawColumn],
    rows: NDArray[np.int64],
    categories: set[str],
    chosen: set[str],
    flag: bool,
    left: dict[str, str],
    notes: list[str],
) -> tuple[list[RawColumn], list[Column]]:
    """Columns with how they are encoded.

    Args:
        features: The columns.
        rows: Numbers of the training rows, from which everything is learnt.
        categories: Names of those that were said to be categories.
        chosen: Names of those that were said to be used.
        flag: Whether a missing value gets an input of its own.
        left: Why columns are left out, by name; what training rows cannot teach is added.
        notes: For the user; what was found is added.
    """
    used, fitted, details = [], [], []
    for column in features:
        name, texts = column.name, column.is_text and column.name not in categories
        why = None if name in chosen else _no_use(column, rows)
        most, covered, count = _frequent(column, rows) if texts and why is None else (None, 1.0, 0)
        if why is None and covered < LEAST_COVERED:
            why = "rare texts in most rows"
        if why is not None:
            left[name] = why
            continue
        if name in categories and column.format.others:
            column = column.as_text()  # what is no number is a category, too
        code = fit_column(column, rows, category=name in categories, most=most, gaps=flag)
        if texts and len(code.categories) < count:
            details.append(f"{name!r} (the {len(code.categories)} most frequent of {count})")
        if code.kind == "date" and (remarks := _on_dates(column.format)):
            details.append(f"{name!r} ({remarks})")
        if code.kind == "number" and (symbols := written_alike(column)):
            details.append(f"{name!r} (some values with {' or '.join(symbols)}, all read alike)")
        if code.extras:
            details.append(f"{name!r} ({listed(how_read(column))})")
        if code.others:
            details.append(f"{name!r} ({listed([short(text) for text in code.others])} counted as missing)")
        used.append(column)
        fitted.append(code)
    notes += _kinds([pair for pair in zip(used, fitted) if pair[1].name not in categories])
    if details:
        notes.append(f"in detail: {listed(details)}")
    return used, fitted


def how_read(column: RawColumn) -> list[str]:
    """How cells were read that hold more than a number and its unit."""
    if column.cells is None or column.is_text or not column.format.extras:
        return []
    return read_examples(column.cells, column.values.tolist(), column.format.extras)


def written_alike(column: RawColumn) -> list[str]:
    """Symbols that some numbers of a column have and others do not, though they were read alike."""
    is_written = column.cells is not None and not column.is_text and column.format.kind == "number"
    return mixed_symbols(column.cells) if is_written and not column.format.unit else []


def _on_dates(form: Format) -> str:
    """What a reader should know about how dates were read."""
    american = any(pattern.startswith("%m") for pattern in form.patterns)
    several = f"written in {len(form.patterns)} ways" if len(form.patterns) > 1 else ""
    if form.pattern in UNIX:
        return form.pattern
    order = f"read as {'month/day' if american else 'day/month'}" if form.either else ""
    return ", ".join(filter(None, (several, order)))


def _no_use(column: RawColumn, rows: NDArray[np.int64]) -> str | None:
    """Why nothing can be learnt from a column's training rows, None where something can."""
    known = ~column.missing[rows]
    if not known.any():
        return "no values in the training rows"
    same = known.all() and len(set(column.values[rows].tolist())) == 1
    return "the same value in all training rows" if same else None


def _frequent(column: RawColumn, rows: NDArray[np.int64]) -> tuple[int | None, float, int]:
    """How many texts of a column to take for categories, the share of rows that has them, and how many there are."""
    counts = list(top_categories(column, rows).values())
    if len(counts) <= _FEW_CATEGORIES:
        return None, 1.0, len(counts)
    most = min(most_categories(len(rows)), sum(count > 1 for count in counts))
    return most, sum(counts[:most]) / sum(counts), len(counts)


def _kinds(pairs: Sequence[tuple[RawColumn, Column]]) -> list[str]:
    """What columns were found to be, one sentence for each kind."""
    fitted = [code for _, code in pairs]
    titles = {"category": "categories", "boolean": "yes or no", "date": "dates"}
    names = {title: [repr(code.name) for code in fitted if code.kind == kind] for kind, title in titles.items()}
    commas = [
        repr(code.name)
        for column, code in pairs
        if code.source == "number" and code.format.endswith(",5") and (column.values % 1 > 0).any()
    ]
    names["numbers with a decimal comma"] = commas
    names["numbers with a unit"] = [f"{code.name!r} ({code.unit})" for code in fitted if code.unit]
    return [f"{title}: {listed(there)}" for title, there in names.items() if there]
