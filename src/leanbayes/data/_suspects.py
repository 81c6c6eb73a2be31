"""Rows and values of a table that look like mistakes, which nobody sees in the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn, number_text
from leanbayes.data._encode import listed

# The share of test rows that are training rows, too, from which it is said.
_REPEATED = 0.01
# Different values of a column below which none is far from the others.
_LEAST_VALUES = 4
# How far a value is from all others, in ranges of these: one that occurs several times, and one that does not.
_FAR, _LONE = 3.0, 100.0


def on_repeats(x: NDArray[np.float64], y: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64]) -> list[str]:
    """A note where test rows are also among the training rows, so that a model need not generalise.

    Args:
        x: Inputs ``[rows, features]``.
        y: Targets ``[rows]``.
        train: Numbers of the rows that training sees, those for validation included.
        test: Numbers of those for the test.
    """
    rows = np.ascontiguousarray(np.column_stack([x, y]) + 0.0)  # there are two zeros
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    count = int(np.isin(whole[test], whole[train]).sum())
    if not count or count < _REPEATED * len(test):
        return []
    also = "also occurs" if count == 1 else "also occur"
    return [
        f"{count:,} of the {len(test):,} test rows {also} among the training rows, with equal inputs and an equal "
        "target; if they are copies of the same records, remove them from the file, as they flatter every figure"
    ]


def on_far_values(columns: Sequence[RawColumn]) -> list[str]:
    """A note on numbers such as -999 that stand far from all others of their column.

    Args:
        columns: Inputs, and the target where it is a number.
    """
    found, texts, written = [], [], True
    for column in columns:
        if column.is_text or column.format.kind != "number":
            continue
        for value, count, low, high in _far_values(column.values[~column.missing]):
            name = number_text(value)
            others = f"the others are from {low:.6g} to {high:.6g}"
            found.append(f"{name} in {count:,} row{'s' if count > 1 else ''} of {column.name!r} ({others})")
            if column.cells is None:
                written = False
            else:
                texts += column.cells.take(np.flatnonzero(column.values == value)).unique().to_pylist()
    if not found:
        return []
    advice = f"pass na={list(dict.fromkeys(texts))!r}" if written else "leave those cells empty"
    return [f"some values are far from all others: {listed(found)}; if they stand for missing ones, {advice}"]


def _far_values(values: NDArray[np.float64]) -> list[tuple[float, int, float, float]]:
    """Values at the ends that are far from the others: each with its count, and the ends of the others.

    Example:
        >>> _far_values(np.array([18.0, 35, 60, 70, -999, -999])), _far_values(np.array([0.0, 1, 2, 3, 9]))
        ([(-999.0, 2, 18.0, 70.0)], [])
    """
    distinct, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    found = []
    for end in (0, -1):
        if len(distinct) <= _LEAST_VALUES:
            break
        value, count = float(distinct[end]), int(counts[end])
        others = np.delete(distinct, end)
        low, high = float(others[0]), float(others[-1])
        gap = abs(value - others[end]) / (high - low)
        # Zero is far from the others where most things do not happen at all.
        if value != 0 and (gap > (_LONE if count == 1 else _FAR) or _is_code(value, low)):
            found.append((value, count, low, high))
            distinct, counts = others, np.delete(counts, end)
    return found


def _is_code(value: float, low: float) -> bool:
    """Whether a value is of nines alone and the only one below zero, as no measurement is.

    Example:
        >>> _is_code(-999.0, 0.0), _is_code(-999.0, -998.0), _is_code(-9.0, 0.0)
        (True, False, False)
    """
    nines = set(str(number_text(-value))) == {"9"}
    return value < -9 and low >= 0 and nines
