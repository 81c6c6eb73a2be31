"""Seeded choice of the rows that are held out for validation or test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# One stream of random numbers for each purpose, so that the choices of one seed are independent.
TEST_STREAM, VALID_STREAM, STOP_STREAM = 0, 1, 2
# Below so many rows, those held out to stop on would say less than they would teach.
FEWEST_ROWS = 20
_SHARE, _SMALL_SHARE = 0.1, 0.2
_ENOUGH, _MOST = 100, 10_000
# Orders of groups that are tried, and placements of single ones in all of them together.
_MOST_ORDERS, _PLACEMENTS = 30, 3000


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


def held_out_count(rows: int) -> int:
    """How many rows suffice to stop on: a tenth, of small data up to a fifth so as to have 100, and at most 10,000.

    Below 20 rows it is none.

    Example:
        >>> [held_out_count(rows) for rows in (19, 20, 100, 400, 2000, 500_000)]
        [0, 4, 20, 80, 200, 10000]
    """
    if rows < FEWEST_ROWS:
        return 0
    return round(min(_MOST, max(_SHARE * rows, min(_SMALL_SHARE * rows, _ENOUGH))))


def hold_out(
    rows: int,
    share: float,
    seed: int,
    *,
    stream: int,
    labels: NDArray[np.integer] | None = None,
    groups: NDArray[np.integer] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide ``range(rows)`` in two, the same way for the same arguments.

    Args:
        rows: Number of examples.
        share: Which part to hold out, or how many examples.
        seed: From 0 on.
        stream: What the choice is for; choices of different streams are independent.
        labels: Classes ``[rows]``, each of which is held out in proportion.
        groups: A number for the group of each row ``[rows]``. None of them is divided, so the number of rows and the
            shares of the classes are as close to what is asked for as groups allow.

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
    random = np.random.RandomState([seed, stream])
    if groups is not None and count:
        held = _hold_out_groups(groups, count, random, labels)
        return np.flatnonzero(~held), np.flatnonzero(held)
    order = random.permutation(rows)
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


def _hold_out_groups(
    groups: NDArray[np.integer], count: int, random: np.random.RandomState, labels: NDArray[np.integer] | None = None
) -> NDArray[np.bool_]:
    """Which rows to hold out so that no group is divided, and about `count` rows, with the classes in proportion.

    Groups are taken in random order as long as each brings the shares of the classes, and of all rows, that are held
    out closer to the one that is asked for. Of several orders, the best is kept.

    Args:
        groups: A number for the group of each row ``[N]``.
        count: How many rows to hold out.
        random: Of the orders.
        labels: Classes ``[N]``.

    Returns:
        A mask ``[N]``; of all groups, at least one is held out, and at least one is not.
    """
    names, place = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"cannot hold out a part of {len(names)} group; at least 2 are needed, one for each part")
    shares = _shares(place, labels)
    wanted = count / len(groups)
    best, least = np.zeros(len(names), dtype=bool), np.inf
    # Of many small groups, any order gets as close.
    for _ in range(max(1, min(_MOST_ORDERS, _PLACEMENTS // len(names)))):
        held, distance = _greedy(shares, wanted, random.permutation(len(names)))
        if distance < least:
            best, least = held, distance
    return best[place]


def _shares(place: NDArray[np.int64], labels: NDArray[np.integer] | None) -> NDArray[np.float64]:
    """The share of each class, and of all rows in the last column, that each group has ``[groups, classes + 1]``."""
    columns = [np.bincount(place)]
    if labels is not None:
        columns = [*(np.bincount(place, labels == label) for label in np.unique(labels)), *columns]
    counts = np.stack(columns, axis=1).astype(np.float64)
    return counts / counts.sum(0)


def _greedy(shares: NDArray[np.float64], wanted: float, order: NDArray[np.int64]) -> tuple[NDArray[np.bool_], float]:
    """Which groups to hold out, and how far their shares are from the one that is wanted."""
    held, lacking = np.zeros(len(shares), dtype=bool), np.full(shares.shape[1], wanted)
    distance = np.abs(lacking).sum()
    for group in order:
        after = np.abs(lacking - shares[group]).sum()
        if after < distance and held.sum() < len(held) - 1:
            held[group], lacking, distance = True, lacking - shares[group], after
    if not held.any():
        apart = np.abs(wanted - shares).sum(1)
        held[apart.argmin()], distance = True, apart.min()
    return held, float(distance)
