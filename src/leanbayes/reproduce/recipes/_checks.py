"""Checks that several recipes make, with the gap in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch

from leanbayes.metrics.functional import paired_test
from leanbayes.reproduce.result import Check

# A two-sided test at the level of 5 %.
_SIGNIFICANT = 1.96


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


def paired_z(right: Sequence[int], others: Sequence[int]) -> float:
    """McNemar's statistic: how many standard errors more often the first of two networks alone is right.

    Args:
        right: 1 for each example that the first gets right, else 0.
        others: The same of the second, for the same examples.
    """
    return float(paired_test(torch.as_tensor(right), torch.as_tensor(others)).z)


def no_less_accurate(name: str, other: str, right: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> Check:
    """The examples that exactly one of two networks gets right do not speak for the other one; of all seeds together.

    Args:
        name: Of the network that must be no worse.
        other: Of the other one.
        right: For every seed, as `paired_z` takes it.
        others: The same of the other one.
    """
    z = paired_z([a for one in right for a in one], [b for one in others for b in one])
    text = f"{name} no less accurate than {other} (paired test at 5 %)"
    return Check(text, z >= -_SIGNIFICANT, f"{name} against {other}: z = {z:.2f}, below {-_SIGNIFICANT}")
