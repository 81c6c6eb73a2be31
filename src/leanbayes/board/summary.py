"""Ranks, wins and differences over tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Values = Sequence[float | None]
# By contender and table, one value per split; None where a contender was not run or failed.
Board = Mapping[str, Mapping[str, Values | None]]


def mean_of(values: Values | None) -> float | None:
    """Mean over the splits, None where one is missing."""
    if not values or any(value is None for value in values):
        return None
    return fmean(value for value in values if value is not None)


def ranks(board: Board, tables: Sequence[str], higher: bool) -> dict[str, tuple[float, int, int]]:
    """Mean rank, number of tables and number of first places of each contender.

    Ranks are shares from 0 (first) to 1 (last) of those that a table was run with, so that tables on which some are
    missing count alike.
    """
    places: dict[str, list[float]] = {name: [] for name in board}
    firsts = dict.fromkeys(board, 0)
    for table in tables:
        means = {name: mean_of(of.get(table)) for name, of in board.items()}
        there = {name: mean for name, mean in means.items() if mean is not None}
        for name, mean in there.items():
            better = sum(other > mean if higher else other < mean for other in there.values())
            places[name].append(better / max(len(there) - 1, 1))
            firsts[name] += better == 0
    return {name: (fmean(found), len(found), firsts[name]) for name, found in places.items() if found}


def difference(one: Values | None, other: Values | None) -> tuple[float, float] | None:
    """Mean and standard error of the differences split by split, None where one of both is missing."""
    if mean_of(one) is None or mean_of(other) is None:
        return None
    pairs: Any = zip(one or (), other or (), strict=True)
    values = [a - b for a, b in pairs]
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
