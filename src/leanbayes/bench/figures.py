"""From times of rounds to the figures of a row: medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from leanbayes.bench.measuring import quartiles

Times = Mapping[str, Sequence[float]]


def timing(times: Times, name: str, base: str) -> dict[str, Any]:
    """Median seconds of a function and of the one that it is set against, and their ratio, with quartiles.

    The quartiles of the ratio are those over rounds, in which both ran one after the other.

    Example:
        >>> found = timing({"plain": [1.0, 2.0, 1.0], "emp": [1.5, 2.2, 1.4]}, "emp", "plain")
        >>> found["seconds"], found["ratio"]
        (1.5, 1.5)
    """
    rounds = [one / other for one, other in zip(times[name], times[base], strict=True)]
    return {
        "seconds": statistics.median(times[name]),
        "seconds_quartiles": quartiles(times[name]),
        "plain_seconds": statistics.median(times[base]),
        "ratio": statistics.median(times[name]) / statistics.median(times[base]),
        "ratio_quartiles": quartiles(rounds),
    }


def against_ours(times: Times, peer: str, ours: str) -> dict[str, Any]:
    """How many times as long a peer takes as ours."""
    rounds = [theirs / own for theirs, own in zip(times[peer], times[ours], strict=True)]
    return {
        "ours_seconds": statistics.median(times[ours]),
        "over_ours": statistics.median(times[peer]) / statistics.median(times[ours]),
        "over_ours_quartiles": quartiles(rounds),
    }


def verdict(ratio: float, at_most: float | None) -> dict[str, Any]:
    """A stated bound and whether the ratio keeps it; nothing where none is stated."""
    return {} if at_most is None else {"at_most": at_most, "holds": ratio <= at_most}
