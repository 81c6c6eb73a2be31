"""How good predictions are."""

from __future__ import annotations

import numpy as np
import torch

from leanbayes.board.contender import Array, Forecast
from leanbayes.metrics.functional import expected_calibration_error

_TINY = 1e-12


def regression_scores(forecast: Forecast, y: Array) -> dict[str, float | None]:
    """RMSE, mean log density, share of targets within the 90 % intervals, and the intervals' mean width."""
    inside = (forecast.lower <= y) & (y <= forecast.upper)
    density = forecast.log_density
    return {
        "rmse": float(np.sqrt(np.mean((forecast.mean - y) ** 2))),
        "log density": None if density is None else float(np.mean(density)),
        "coverage": float(np.mean(inside)),
        "width": float(np.mean(forecast.upper - forecast.lower)),
    }


def class_scores(probs: Array, y: Array) -> dict[str, float]:
    """Accuracy, NLL and expected calibration error (15 bins) for labels 0 to classes - 1."""
    probs = np.asarray(probs, np.float64)
    right = probs[np.arange(len(y)), y]
    return {
        "accuracy": float(np.mean(probs.argmax(1) == y)),
        "nll": float(-np.mean(np.log(np.maximum(right, _TINY)))),
        "ece": float(expected_calibration_error(torch.as_tensor(probs), torch.as_tensor(y))),
    }
