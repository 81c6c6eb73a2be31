"""Columns of a table as numbers for a network, and back to the same numbers for new rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn
from leanbayes.data._dataset import Column

# A column with more values than this is a name or a number of rows, not a category.
MAX_CATEGORIES = 1000
_DAY = 86400.0
# Cycles of a date: seconds of one turn, and of a step within which nothing is told apart.
_CYCLES = {"year": (365.2425 * _DAY, 28 * _DAY), "week": (7 * _DAY, _DAY), "day": (_DAY, 60.0)}
# 1970 began on a Thursday, a week begins on a Monday.
_MONDAY = 4 * _DAY


def fit_column(
    column: RawColumn, rows: NDArray[np.int64], *, category: bool = False, most: int | None = None, gaps: bool = False
) -> Column:
    """How to encode a column, learnt from the training rows.

    Args:
        column: The column.
        rows: Numbers of the training rows.
        category: Whether its values are categories; those of texts always are.
        most: Number of categories at most, the most frequent ones.
        gaps: Whether a missing value gets an input of its own, where training has some.
    """
    indicator = gaps and bool(column.missing[rows].any())
    kind = column.format.kind
    if category or column.is_text:
        form = column.format.pattern if kind == "number" else ""
        names = tuple(sorted(top_categories(column, rows, most)))
        unit, extras = column.format.unit, column.format.extras
        return Column(column.name, names, "category", form, column.format.others, indicator, unit=unit, extras=extras)
    if kind == "date":
        parts, origin = _date_parts(column.values[rows])
        return Column(column.name, (), "date", column.format.pattern, column.format.others, indicator, parts, origin)
    known = column.values[rows][~column.missing[rows]]
    return Column(
        column.name,
        kind="boolean" if kind == "boolean" else "number",
        format=column.format.pattern,
        others=column.format.others,
        indicator=indicator,
        unit=column.format.unit,
        extras=column.format.extras,
        limits=(float(known.min()), float(known.max())) if kind == "number" and len(known) else None,
    )


def top_categories(column: RawColumn, rows: NDArray[np.int64], most: int | None = None) -> dict[str, int]:
    """The most frequent values of some rows and how often each occurs; all where `most` is None."""
    counts = Counter(value for value in column.texts[rows].tolist() if value is not None)
    # Of equals the first in the alphabet, whatever the order of the rows.
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])


def encode_columns(columns: Sequence[RawColumn], fitted: Sequence[Column], rows: int) -> NDArray[np.float64]:
    """Inputs ``[rows, features]``: numbers as they are, 0 or 1 for each category, NaN for a missing number."""
    blocks = [np.zeros((rows, 0))]
    for column, code in zip(columns, fitted):
        if code.kind == "category":
            place = {value: number for number, value in enumerate(code.categories)}
            # A value that training did not have is in no category.
            numbers = np.array([place.get(value, -1) for value in column.texts])
            blocks.append((numbers[:, None] == np.arange(len(code.categories))).astype(np.float64))
        elif code.kind == "date":
            blocks += [_date_part(column.values, part, code.origin)[:, None] for part in code.parts]
        else:
            blocks.append(column.values.astype(np.float64)[:, None])
        if code.indicator:
            blocks.append(column.missing.astype(np.float64)[:, None])
    return np.concatenate(blocks, axis=1)


def unseen(column: RawColumn, code: Column) -> list[str]:
    """The values of a column, once for each row, that are none of its categories."""
    if code.kind != "category":
        return []
    known = set(code.categories)
    return [value for value in column.texts.tolist() if value is not None and value not in known]


def wrong_values(column: RawColumn) -> list[str]:
    """The texts of a column that could not be read as what it should hold."""
    if column.wrong is None or not column.wrong.any() or column.cells is None:
        return []
    return [str(value) for value in column.cells.take(np.flatnonzero(column.wrong)).to_pylist()]


def infinite_row(column: RawColumn) -> int | None:
    """The first row of a column of numbers with an infinite one, from 0; None where there is none."""
    if column.is_text or not np.isinf(column.values).any():
        return None
    return int(np.isinf(column.values).argmax())


def short(value: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(value if len(value) <= 30 else value[:27] + "...")


def listed(names: Sequence[str], most: int = 12) -> str:
    """Some words in a row, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _date_parts(seconds: NDArray[np.float64]) -> tuple[tuple[str, ...], float]:
    """The parts of a date that differ between training rows, and the first of them."""
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return (), 0.0
    found = ["days"] if known.max() > known.min() else []
    for name, (turn, step) in _CYCLES.items():
        if len(np.unique(np.floor(_phase(known, name) * turn / step))) > 1:
            found += [f"{name} (sine)", f"{name} (cosine)"]
    return tuple(found), float(known.min())


def _date_part(seconds: NDArray[np.float64], part: str, origin: float) -> NDArray[np.float64]:
    if part == "days":
        return (seconds - origin) / _DAY
    name, function = part.split()
    angle = 2 * np.pi * _phase(seconds, name)
    return np.sin(angle) if function == "(sine)" else np.cos(angle)


def _phase(seconds: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Where in a cycle each date is, from 0 to below 1; days of the week are told apart, and hours are not."""
    turn = _CYCLES[name][0]
    if name == "week":
        return (np.floor((seconds - _MONDAY) / _DAY) % 7) / 7
    return (seconds % turn) / turn
