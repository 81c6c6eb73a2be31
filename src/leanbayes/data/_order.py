"""Tables whose rows have an order, such as that of time: the last ones are for the test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn
from leanbayes.data._table_errors import Problem

# Dates below which a table that is sorted by them is no series.
_LEAST_DATES = 20


def find_order(columns: Sequence[RawColumn], name: str, source: str) -> tuple[NDArray[np.int64] | None, list[Problem]]:
    """Numbers of the rows, ascending by a column; None with the problem where it gives no order."""
    column = next((column for column in columns if column.name == name), None)
    if column is None:
        return None, []  # which is said elsewhere
    if column.is_text:
        return None, [Problem(f"column {name!r} of {source} holds text; rows are ordered by dates or numbers")]
    if column.missing.any():
        count = int(column.missing.sum())
        return None, [Problem(f"column {name!r} of {source} misses {count} values, so that these rows have no order")]
    return np.argsort(column.values, kind="stable"), []


def on_order(columns: Sequence[RawColumn]) -> list[str]:
    """A note where the rows stand in the order of their dates, among which test rows are drawn."""
    found = next((column.name for column in columns if _is_sorted(column)), None)
    if found is None:
        return []
    return [
        f"the rows are in the order of {found!r}, and test rows were drawn among all of them, which flatters "
        f"predictions of the future; to test on the last rows, pass order_by={found!r}"
    ]


def _is_sorted(column: RawColumn) -> bool:
    """Whether a column of dates, not of times of day, rises or falls from row to row."""
    if (
        column.format.kind != "date"
        or column.missing.any()
        or all(p[:2] in ("%H", "%I") for p in column.format.patterns)
    ):
        return False
    steps = np.diff(column.values)
    return len(np.unique(column.values)) >= _LEAST_DATES and bool((steps >= 0).all() or (steps <= 0).all())
