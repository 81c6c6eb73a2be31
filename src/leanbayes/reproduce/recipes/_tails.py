"""Tails of distributions: Hill's estimator, and what it estimates."""

from __future__ import annotations

import torch
from torch import Tensor


def hill(values: Tensor, low: float, high: float = float("inf")) -> tuple[float, float]:
    r"""Hill's estimate of the tail index from values above a threshold, and its standard error.

    .. math:: \hat\alpha = \frac{\#\{low < x \le high\}}{\sum_{x > low} \log(\min(x, high) / low)}

    which has the most likelihood under a Pareto tail whose values above `high` are only known to be there.

    Args:
        values: Positive values.
        low: Where the tail begins.
        high: Above it values count as censored.
    """
    tail = values[values > low].double()
    seen = int((tail <= high).sum())
    index = seen / float((tail.clamp(max=high) / low).log().sum())
    return index, index / seen**0.5


def hill_limit(points: Tensor, survival: Tensor) -> float:
    r"""What `hill` tends to with many values: :math:`(S(low) - S(high)) / \int_{low}^{high} S(x) / x \, dx`.

    Args:
        points: Ascending, from low to high ``[n]``.
        survival: Probabilities of larger values there ``[n]``.
    """
    area = torch.trapezoid(survival, points.log())
    return float((survival[0] - survival[-1]) / area)
