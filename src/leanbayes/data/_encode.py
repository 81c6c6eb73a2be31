"""Columns of a table as numbers for a network, and back to the same numbers for new rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._arrow import RawColumn
from leanbayes.data._dataset import Column

# A column with more values than this is a name or a number of rows, not a category.
MAX_CATEGORIES = 1000


def fit_column(column: RawColumn, rows: NDArray[np.int64], category: bool, source: str) -> Column:
    """How to encode a column: categories are the values of the training `rows`."""
    if not category:
        return Column(column.name)
    values = _as_texts(column)[rows]
    categories = sorted({value for value in values if value is not None})
    if not categories or len(categories) > MAX_CATEGORIES:
        raise ValueError(
            f"column {column.name!r} of {source} has {len(categories)} values, which are no categories; "
            f"pass drop=[{column.name!r}] to leave it out"
        )
    return Column(column.name, tuple(categories))


def encode_columns(columns: Sequence[RawColumn], fitted: Sequence[Column], rows: int) -> NDArray[np.float64]:
    """Inputs ``[rows, features]``: numbers as they are, one 0 or 1 for each category, NaN for a missing number."""
    blocks = [np.zeros((rows, 0))]
    for column, code in zip(columns, fitted):
        if code.categories:
            place = {value: number for number, value in enumerate(code.categories)}
            # A value that training did not have is in no category.
            numbers = np.array([place.get(value, -1) for value in _as_texts(column)])
            blocks.append((numbers[:, None] == np.arange(len(code.categories))).astype(np.float64))
        else:
            blocks.append(column.values.astype(np.float64)[:, None])
    return np.concatenate(blocks, axis=1)


def check_numeric(column: RawColumn, source: str, advice: bool = True) -> None:
    """Raise one sentence where a column that should hold numbers holds text."""
    if not column.is_text:
        return
    texts = [(row, value) for row, value in enumerate(column.values) if value is not None]
    # A column is text because of the values that are no numbers, so one of them is shown.
    row, value = next(((row, value) for row, value in texts if not _is_float(value)), (*texts, (0, ""))[0])
    name = column.name
    advise = f"; pass categories=[{name!r}] to use its values as categories, or drop=[{name!r}] to leave it out"
    raise ValueError(
        f"column {name!r} of {source} holds text ({_short(value)} in row {row + 1})" + (advise if advice else "")
    )


def check_finite(columns: Sequence[RawColumn], source: str) -> None:
    """Raise one sentence where a column of numbers holds an infinite one."""
    for column in columns:
        if not column.is_text and np.isinf(column.values).any():
            row = int(np.isinf(column.values).argmax())
            raise ValueError(f"column {column.name!r} of {source} holds an infinite number in row {row + 1}")


def _as_texts(column: RawColumn) -> NDArray[np.object_]:
    """Values as texts: whole numbers without a point, None where one is missing."""
    if column.is_text:
        return column.values
    texts = np.empty(len(column.values), object)
    texts[:] = [number_text(value) for value in column.values.tolist()]
    return texts


def number_text(value: float) -> str | None:
    """A number as a text, whole ones without a point; None for NaN."""
    if value != value:
        return None
    return str(int(value)) if value == int(value) else repr(value)


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _short(value: str) -> str:
    return repr(value if len(value) <= 30 else value[:27] + "...")
