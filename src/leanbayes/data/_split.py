"""Seeded choice of the rows that are held out for validation or test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# One stream of random numbers for each purpose, so that the choices of one seed are independent.
TEST_STREAM, VALID_STREAM, STOP_STREAM = 0, 1, 2


def held_count(rows: int, share: float) -> int:
    """How many of `rows` a share stands for: a part of one, or a count.

    Example:
        >>> held_count(50, 0.1), held_count(50, 7)
        (5, 7)
    """
    is_share = isinstance(share, float) and 0 <= share < 1
    # A count may come as 5000.0, but 1.0 could mean either.
    is_count = not isinstance(share, bool) and (isinstance(share, int) or share > 1) and share >= 0 and share % 1 == 0
    if not is_share and not is_count:
        raise ValueError(f"a part to hold out is a share from 0 to below 1 or a number of examples, not {share!r}")
    count = round(rows * share) if is_share else int(share)
    if count and count >= rows:
        raise ValueError(f"cannot hold out {count} of {rows} examples; ask for fewer")
    return count


def hold_out(
    rows: int, share: float, seed: int, *, stream: int, labels: NDArray[np.integer] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ``range(rows)`` in two, the same way for the same arguments.

    Args:
        rows: Number of examples.
        share: Which part to hold out, or how many examples.
        seed: From 0 on.
        stream: What the choice is for; choices of different streams are independent.
        labels: Classes ``[rows]``, each of which is held out in proportion.

    Returns:
        The rows that stay and those held out, both ascending.

    Example:
        >>> kept, held = hold_out(6, 0.5, seed=0, stream=0, labels=np.array([0, 0, 1, 1, 2, 2]))
        >>> (held // 2).tolist()
        [0, 1, 2]
    """
    if isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"a seed is a whole number from 0 to 2**32 - 1, not {seed!r}")
    count = held_count(rows, share)
    # RandomState, because numpy promises that its numbers never change.
    order = np.random.RandomState([seed, stream]).permutation(rows)
    if labels is not None:
        order = order[np.argsort(_place_in_class(np.asarray(labels)[order]), kind="stable")]
    return np.sort(order[count:]), np.sort(order[:count])


def hold_out_last(rows: int, share: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ``range(rows)`` in two, of which the second has the last ones.

    Example:
        >>> [part.tolist() for part in hold_out_last(5, 0.4)]
        [[0, 1, 2], [3, 4]]
    """
    kept = rows - held_count(rows, share)
    return np.arange(kept), np.arange(kept, rows)


def _place_in_class(labels: NDArray[np.integer]) -> NDArray[np.float64]:
    """Where in its class each example stands, from 0 to 1: sorting by it mixes the classes evenly."""
    by_class = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    places = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes]) if len(sizes) else np.zeros(0)
    result = np.empty(len(labels))
    result[by_class] = places
    return result
