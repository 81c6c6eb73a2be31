"""Log predictive density over batches and ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import MeanMetric
from leanbayes.metrics.functional.density import _log_densities


class LogPredictiveDensity(MeanMetric):
    """Mean log predictive density in nats; see `functional.log_predictive_density`.

    Args:
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> from leanbayes import Gaussian
        >>> metric = LogPredictiveDensity()
        >>> metric.update(Prediction(torch.zeros(5, 2, 1), Gaussian(1.0)), torch.tensor([0.0, 1.0]))
        >>> metric.compute()
        tensor(-1.1689)
    """

    higher_is_better = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("log_density", **kwargs)

    def update(self, prediction: Prediction, targets: Tensor) -> None:
        """Take in a `Prediction` and its targets ``[B, ...]``."""
        self._add(_log_densities(prediction, targets))
