"""Which rows of a table are for training, for validation and for test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._split import TEST_STREAM, VALID_STREAM, held_count, held_out_count, hold_out, hold_out_last

RowNumbers = NDArray[np.int64]


def divide_rows(
    rows: int,
    valid: float,
    test: float,
    seed: int,
    *,
    labels: NDArray[np.integer] | None = None,
    groups: NDArray[np.integer] | None = None,
    ordered: bool = False,
) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
    """Numbers of the rows for training, validation and test, each ascending.

    Args:
        rows: How many there are.
        valid: Share or number of training rows for validation. Where the parts are groups, or stretches of an order,
            there are enough of them to stop on, as no others can be added to them later.
        test: Share or number of all rows for test.
        seed: Of the choice.
        labels: Classes ``[rows]``, which are held out in proportion.
        groups: A number for the group of each row ``[rows]``, none of which is divided.
        ordered: Whether the last rows are for test, and those before them for validation.
    """
    if ordered:
        rest, last = hold_out_last(rows, test)
        return (*hold_out_last(len(rest), _enough(len(rest), valid)), last)
    rest, tested = hold_out(rows, test, seed, stream=TEST_STREAM, labels=labels, groups=groups)
    share = valid if groups is None else _enough(len(rest), valid)
    kept, held = hold_out(
        len(rest),
        share,
        seed,
        stream=VALID_STREAM,
        labels=None if labels is None else labels[rest],
        groups=None if groups is None else groups[rest],
    )
    return rest[kept], rest[held], tested


def _enough(rows: int, share: float) -> int:
    count = held_count(rows, share)
    return max(count, held_out_count(rows)) if count else 0
