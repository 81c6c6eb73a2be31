"""Values of a table that look like mistakes, which nobody sees in the figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn, number_text
from leanbayes.data._encode import listed

# Different values of a column below which none is far from the others.
_LEAST_VALUES = 4
# How far one value that occurs several times is from all others, in ranges of these.
_OFTEN_FAR = 3.0
# The same for any in the last hundredth of the values at either end, in ranges of the values between.
_RARE, _RARELY_FAR = 0.01, 100.0
# Texts that an option should name at most.
_MOST_TEXTS = 5


def on_far_values(columns: Sequence[RawColumn]) -> list[str]:
    """A note on numbers such as -999 that stand far from all others of their column.

    Args:
        columns: Inputs, and the target where it is a number.
    """
    found, texts, written = [], [], True
    for column in columns:
        if column.is_text or column.format.kind != "number":
            continue
        far, low, high = _far_values(column.values[~column.missing])
        if not len(far):
            continue
        rows = np.flatnonzero(np.isin(column.values, far))
        such = "" if len(far) == 1 else "ones such as "
        where = f"{len(rows):,} row{'s' if len(rows) > 1 else ''}"
        name = f"{far[abs(far).argmax()]:.7g}"
        found.append(f"{such}{name} in {where} of {column.name!r} (the others are from {low:.6g} to {high:.6g})")
        if column.cells is None:
            written = False
        else:
            texts += column.cells.take(rows).unique().to_pylist()
    if not found:
        return []
    texts = list(dict.fromkeys(texts))
    advice = f"pass na={texts!r}" if written and len(texts) <= _MOST_TEXTS else "empty those cells"
    stand = "if they are mistakes or stand for missing ones"
    return [f"some values are far from all others: {listed(found)}; {stand}, {advice}"]


def _far_values(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """Different values that are far from the others, and the ends of the others.

    Example:
        >>> _far_values(np.array([18.0, 35, 60, 70, 80, -999, -999]))
        (array([-999.]), 18.0, 80.0)
        >>> len(_far_values(np.array([0.0, 1, 2, 3, 4, 9]))[0])
        0
    """
    values = np.sort(values[np.isfinite(values)])
    distinct, counts = np.unique(values, return_counts=True)
    far = np.zeros(len(distinct), dtype=bool)
    if len(distinct) <= _LEAST_VALUES:
        return distinct[far], 0.0, 0.0
    low, high = np.quantile(values, _RARE, method="higher"), np.quantile(values, 1 - _RARE, method="lower")
    if high > low:
        far = np.maximum(low - distinct, distinct - high) > _RARELY_FAR * (high - low)
    for end in (0, -1):
        others = np.delete(distinct, end)
        gap = abs(distinct[end] - others[end]) / (others[-1] - others[0])
        # Zero is far from the others where most things do not happen at all.
        often = counts[end] > 1 and gap > _OFTEN_FAR and distinct[end] != 0
        far[end] |= often or _is_code(float(distinct[end]), float(others[0]))
    near = distinct[~far]
    return distinct[far], float(near[0]), float(near[-1])


def _is_code(value: float, low: float) -> bool:
    """Whether a value is of nines alone and the only one below zero, as no measurement is.

    Example:
        >>> _is_code(-999.0, 0.0), _is_code(-999.0, -998.0), _is_code(-9.0, 0.0)
        (True, False, False)
    """
    nines = set(str(number_text(-value))) == {"9"}
    return value < -9 and low >= 0 and nines
