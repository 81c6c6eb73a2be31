"""Whether the logarithm of a target is predicted, instead of the target as it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._table_errors import TableError

SCALES = ("auto", "linear", "log")
# Nats per row by which a log-normal distribution explains targets better, from which their logarithm is predicted.
_LEAST_GAIN = 0.2
_LEAST_ROWS = 20


def choose_log(scale: str, y: NDArray[np.float64], rows: NDArray[np.int64], target: str, notes: list[str]) -> bool:
    """Whether to predict the logarithm.

    Args:
        scale: One of `SCALES`.
        y: Targets of all rows.
        rows: Numbers of the training rows, from which the choice is made.
        target: Name of the column.
        notes: For the user; what was chosen is added.
    """
    if scale == "linear":
        return False
    if not (y > 0).all():
        if scale == "auto":
            return False
        raise TableError(
            f"the target {target!r} has values such as {y.min():g}, which have no logarithm; pass "
            "target_scale='linear'",
            {"target_scale": "linear"},
        )
    if scale == "auto" and (len(rows) < _LEAST_ROWS or log_gain(y[rows]) < _LEAST_GAIN):
        return False
    chosen = f"the logarithm of the target {target!r} is predicted"
    if scale == "auto":
        chosen += ", as it is skewed; for the target as it is, pass target_scale='linear'"
    notes.append(chosen)
    return True


def log_gain(y: NDArray[np.float64]) -> float:
    """How much more likely, in nats per number, positive numbers are as log-normal than as normal ones.

    Both distributions have the mean and the variance that suit the numbers best.

    Example:
        >>> noise = np.random.RandomState(0).randn(10_000)
        >>> round(log_gain(np.exp(noise)), 1), round(log_gain(10 + noise), 1)
        (0.7, -0.0)
    """
    logs = np.log(y)
    if y.std() == 0 or logs.std() == 0:
        return 0.0
    return float(np.log(y.std()) - np.log(logs.std()) - logs.mean())
