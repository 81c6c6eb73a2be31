"""Checks that several recipes make, with the gap in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from leanbayes.reproduce.result import Check


def _mean(values: Sequence[float]) -> float:
    """The mean without its last digits, so that 99.1, 99.2 and 99.3 are at least 99.2 on average."""
    return round(fmean(values), 9)


def at_least(text: str, values: Sequence[float], limit: float, unit: str = "") -> Check:
    """The mean over seeds is at least a limit."""
    mean = _mean(values)
    return Check(
        f"{text}: at least {limit:g}{unit}", mean >= limit, f"{text}: {mean:.5g}{unit}, {limit - mean:.3g} short"
    )


def at_most(text: str, values: Sequence[float], limit: float, unit: str = "") -> Check:
    """The mean over seeds is at most a limit."""
    mean = _mean(values)
    return Check(
        f"{text}: at most {limit:g}{unit}", mean <= limit, f"{text}: {mean:.5g}{unit}, {mean - limit:.3g} above"
    )


def every(text: str, values: Sequence[float], low: float, high: float, unit: str = "") -> Check:
    """All values lie between two limits."""
    off = [value for value in values if not low <= value <= high]
    shown = ", ".join(f"{value:.5g}{unit}" for value in off)
    return Check(
        f"{text}: from {low:g} to {high:g}{unit}", not off, f"{text}: {shown} outside {low:g} to {high:g}{unit}"
    )


def in_order(text: str, values: dict[str, float]) -> Check:
    """Values fall in the order of the names."""
    names = list(values)
    wrong = [(a, b) for a, b in zip(names, names[1:]) if not values[a] > values[b]]
    shown = "; ".join(f"{a} {values[a]:.4g} is not above {b} {values[b]:.4g}" for a, b in wrong)
    return Check(f"{text}: {' > '.join(names)}", not wrong, f"{text}: {shown}")
