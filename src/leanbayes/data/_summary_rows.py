"""Rows at the end of a table that sum up those above them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn
from leanbayes.data._encode import short

_NAMES = (
    "total", "totals", "grand total", "sum", "average", "avg", "mean", "summe", "gesamt", "gesamtsumme",
    "insgesamt", "mittelwert", "durchschnitt", "somme", "moyenne", "suma", "totale",
)  # fmt: skip
# A sum of rounded numbers need not be that of the numbers.
_ROUNDED = 1e-3
_MOST = 3


def without_summary_rows(columns: list[RawColumn], notes: list[str]) -> list[RawColumn]:
    """The columns without rows such as "Total" at the end, of which at least one number sums up those above.

    Example:
        >>> region = RawColumn("region", np.array(["north", "south", "Total"], object))
        >>> units = RawColumn("units", np.array([3.0, 4.0, 7.0]))
        >>> [len(column.values) for column in without_summary_rows([region, units], [])]
        [2, 2]
    """
    rows = len(columns[0].values)
    # Of several, such as a sum and a mean, each sums up the rows above all of them.
    for first in range(max(1, rows - _MOST), rows):
        names = [_name(columns, row) for row in range(first, rows)]
        if all(names) and all(_sums_up(columns, row, first) for row in range(first, rows)):
            what = "the last row" if len(names) == 1 else f"the last {len(names)} rows"
            sums = "was left out, as it sums up" if len(names) == 1 else "were left out, as they sum up"
            notes.append(f"{what} ({', '.join(map(short, names))}) {sums} the others")
            return [column.take(np.arange(first)) for column in columns]
    return columns


def _name(columns: Sequence[RawColumn], row: int) -> str:
    """The text of a row that is the name of a sum or a mean; empty where there is none."""
    texts = [column.values[row] for column in columns if column.is_text]
    return next((text for text in texts if text is not None and text.strip(" :").lower() in _NAMES), "")


def _sums_up(columns: Sequence[RawColumn], row: int, end: int) -> bool:
    """Whether a number of a row is the sum or the mean of those in the rows before `end`."""
    numbers = [column.values for column in columns if not column.is_text and column.format.kind == "number"]
    return any(_is_sum(values[:end], float(values[row])) for values in numbers)


def _is_sum(values: NDArray[np.float64], found: float) -> bool:
    known = values[np.isfinite(values)]
    if len(known) < 2 or not np.isfinite(found):
        return False
    sums = np.array([known.sum(), known.mean()])
    return bool((abs(sums - found) <= _ROUNDED * abs(sums)).any())
