"""How good predictions are."""

from __future__ import annotations

import torch

from leanbayes.board.contender import Array, Forecast
from leanbayes.metrics.functional import accuracy, coverage, expected_calibration_error, interval_width, nll, rmse


def regression_scores(forecast: Forecast, y: Array) -> dict[str, float | None]:
    """RMSE, mean log density, share of targets within the 90 % intervals, and the intervals' mean width."""
    mean, lower, upper, truth = (torch.as_tensor(part) for part in (*forecast[:3], y))
    return {
        "rmse": rmse(mean, truth).item(),
        "log density": None if forecast.log_density is None else float(forecast.log_density.mean()),
        "coverage": coverage(lower, upper, truth).item(),
        "width": interval_width(lower, upper).item(),
    }


def class_scores(probs: Array, y: Array) -> dict[str, float]:
    """Accuracy, NLL and expected calibration error (15 bins) for labels 0 to classes - 1."""
    given = torch.as_tensor(probs), torch.as_tensor(y)
    found = {"accuracy": accuracy(*given), "nll": nll(*given), "ece": expected_calibration_error(*given)}
    return {name: value.item() for name, value in found.items()}
