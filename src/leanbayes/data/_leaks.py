"""Columns that are the target in another form, which no honest figure survives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn
from leanbayes.data._encode import listed

# Training rows below which nothing is said: in a few, a good column may well be right by chance.
_LEAST_ROWS = 30
# Rows that at least two values of the target must have each, to be compared one by one.
_SEVERAL = 5
# Targets of a regression with fewer different values are compared like classes, others by a straight line.
_LEAST_VALUES = 10
# How far off the line rounding may take a value, and a computer's arithmetic, as shares of the middle half of values.
_MOST_ROUNDED, _ARITHMETIC = 5e-3, 1e-6
_MOST_DECIMALS = 9
# Rows that tell most columns from the target, before all are looked at.
_FIRST = 1000


def on_leaks(target: str, y: NDArray[Any], columns: Sequence[RawColumn], rows: NDArray[np.int64]) -> list[str]:
    """A note on columns of which the target is an exact function, and that are exact functions of it.

    Args:
        target: Name of the target's column.
        y: Classes as whole numbers, or targets of a regression as float64.
        columns: What the network gets.
        rows: Numbers of the training rows, from which everything is learnt.
    """
    found = [column.name for column in columns if _is_target(column, y, rows)]
    if not found:
        return []
    if len(found) == 1:
        is_function = f"column {found[0]!r} is an exact function of the target {target!r}"
        return [f"{is_function}; if it is not known when you predict, leave it out with drop={found!r}"]
    are_functions = f"columns {listed([repr(name) for name in found])} are exact functions of the target {target!r}"
    return [f"{are_functions}; leave out those that are not known when you predict with drop={found!r}"]


def _is_target(column: RawColumn, y: NDArray[Any], rows: NDArray[np.int64]) -> bool:
    """Whether a column is the target in another form, in the rows where it is known, at least half of all.

    Either the values of both belong together one to one, where two of them occur several times; or they are numbers
    on a straight line, but for the rounding of their last decimals. A finer category, such as the town where a country
    is to be predicted, is no other form of it.
    """
    known = rows[~column.missing[rows]]
    if column.format.kind == "date" or len(known) < max(_LEAST_ROWS, len(rows) / 2):
        return False
    x, y = column.values[known], y[known]
    values, counts = np.unique(y, return_counts=True)
    if y.dtype.kind == "i" or len(values) < _LEAST_VALUES:
        often = int((counts >= _SEVERAL).sum())
        return often > 1 and _one_to_one(x[:_FIRST], y[:_FIRST]) and _one_to_one(x, y)
    return not column.is_text and _on_a_line(x, y)


def _one_to_one(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether each value of one belongs to one of the other."""
    pairs = set(zip(x.tolist(), y.tolist()))
    return all(len(set(side)) == len(pairs) for side in zip(*pairs))


def _on_a_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Whether numbers are on a straight line that rises or falls, but for rounding.

    The line is that through the ends, and what counts as far off is measured by the middle half of the different
    values, so that a few large numbers do not make all others seem alike.
    """
    low, high = y.argmin(), y.argmax()
    with np.errstate(all="ignore"):  # what is too large for a float is not on the line
        slope = (x[high] - x[low]) / (y[high] - y[low])
        far = abs(x - x[low] - slope * (y - y[low]))
        lower, upper = np.quantile(np.unique(x), (0.25, 0.75))
        if slope == 0 or not (far <= (_MOST_ROUNDED + _ARITHMETIC) * (upper - lower)).all():
            return False
        rounded = max(_last_decimal(x), abs(slope) * _last_decimal(y))
    return bool((far <= rounded + _ARITHMETIC * (upper - lower)).all())


def _last_decimal(values: NDArray[np.float64]) -> float:
    """What one step of the last decimal is that numbers are written with, 0 where they have many.

    Example:
        >>> _last_decimal(np.array([1.5, 2.25, 3.0])), _last_decimal(np.array([1 / 3]))
        (0.01, 0.0)
    """
    for decimals in range(_MOST_DECIMALS + 1):
        if np.allclose(values, values.round(decimals), rtol=1e-12, atol=0):
            return 10.0**-decimals
    return 0.0
