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
# The probability below which it is no chance that each category has a single class.
_BY_LOT = 1e-9
# Rows that tell most columns from the target, before all are looked at.
_FIRST = 1000


def on_leaks(target: str, y: NDArray[Any], columns: Sequence[RawColumn], rows: NDArray[np.int64]) -> list[str]:
    """Notes on columns that are the target in another form, that determine its class, or do so by their gaps.

    Args:
        target: Name of the target's column.
        y: Classes as whole numbers, or targets of a regression as float64.
        columns: What the network gets.
        rows: Numbers of the training rows, from which everything is learnt.
    """
    if len(rows) < _LEAST_ROWS:
        return []
    exact = [column.name for column in columns if _is_target(column, y, rows)]
    finer = [column.name for column in columns if column.name not in exact and _is_finer(column, y, rows)]
    by_gaps = [column.name for column in columns if column.name not in exact and _tells_by_gaps(column, y, rows)]
    notes = []
    if exact:
        is_function = "is an exact function" if len(exact) == 1 else "are exact functions"
        notes.append(f"{_columns(exact)} {is_function} of the target {target!r}; {_advice(exact)}")
    if finer:
        determine = "determines" if len(finer) == 1 else "determine"
        notes.append(
            f"{_columns(finer)} {determine} the target {target!r}, as each value has a single class; {_advice(finer)}"
        )
    if by_gaps:
        has = "has a value depends" if len(by_gaps) == 1 else "have values depends"
        notes.append(f"whether {_columns(by_gaps)} {has} on the target {target!r} alone; {_advice(by_gaps)}")
    return notes


def _columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {listed([repr(name) for name in names])}"


def _advice(names: list[str]) -> str:
    if len(names) == 1:
        return f"if it is not known when you predict, leave it out with drop={names!r}"
    return f"leave out those that are not known when you predict with drop={names!r}"


def _is_target(column: RawColumn, y: NDArray[Any], rows: NDArray[np.int64]) -> bool:
    """Whether a column is the target in another form, in the rows where it is known, at least half of all.

    Either the values of both belong together one to one, where two of them occur several times; or they are numbers
    on a straight line, but for the rounding of their last decimals; or numbers that rise or fall with the target in
    every step, such as its logarithm, its rank, or the target rounded.
    """
    known = rows[~column.missing[rows]]
    if column.format.kind == "date" or len(known) < max(_LEAST_ROWS, len(rows) / 2):
        return False
    x, y = column.values[known], y[known]
    values, counts = np.unique(y, return_counts=True)
    if y.dtype.kind == "i" or len(values) < _LEAST_VALUES:
        often = int((counts >= _SEVERAL).sum())
        return often > 1 and _one_to_one(x[:_FIRST], y[:_FIRST]) and _one_to_one(x, y)
    return not column.is_text and (_on_a_line(x, y) or _in_step(x, y))


def _is_finer(column: RawColumn, y: NDArray[Any], rows: NDArray[np.int64]) -> bool:
    """Whether each category of a column, of which several occur often, has a single class, beyond any chance.

    What is measured may well tell classes apart, so numbers are left out.
    """
    known = rows[~column.missing[rows]]
    is_category = column.is_text or column.format.kind == "boolean"
    if y.dtype.kind != "i" or not is_category or len(known) < max(_LEAST_ROWS, len(rows) / 2):
        return False
    x, y = column.values[known], y[known]
    pairs = set(zip(x.tolist(), y.tolist()))
    if len(pairs) > len({value for value, _ in pairs}):
        return False
    shares = np.bincount(y) / len(y)
    # The probability that rows of as many categories had a single class in each, if the classes fell by lot.
    sizes = np.unique(x, return_counts=True)[1]
    with np.errstate(divide="ignore"):
        by_lot = np.log((shares ** sizes[:, None]).sum(1)).sum()
    return bool(by_lot < np.log(_BY_LOT))


def _tells_by_gaps(column: RawColumn, y: NDArray[Any], rows: NDArray[np.int64]) -> bool:
    """Whether a column is known in all rows of some classes, and in none of the others."""
    missing = column.missing[rows]
    if y.dtype.kind != "i" or min(missing.sum(), (~missing).sum()) < _SEVERAL:
        return False
    return not set(y[rows][missing].tolist()) & set(y[rows][~missing].tolist())


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


def _in_step(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Whether one value of x belongs to each of y, and rises, or falls, from one of y to the next; it may be rounded.

    Example:
        >>> y = np.arange(40) * 0.7
        >>> _in_step(np.log1p(y), y), _in_step(y.round(), y), _in_step(np.sin(y), y)
        (True, True, False)
    """
    order = np.argsort(y, kind="stable")
    steps, same = np.diff(x[order]), np.diff(y[order]) == 0
    if (steps[same] != 0).any() or len(np.unique(x)) < _LEAST_VALUES:
        return False
    return bool((steps >= 0).all() or (steps <= 0).all())


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
