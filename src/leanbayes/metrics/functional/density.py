"""Log predictive density."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import mean


def log_predictive_density(prediction: Prediction, targets: Tensor) -> Tensor:
    r"""Mean log predictive density of the targets, in nats (higher is better).

    .. math:: \frac{1}{N} \sum_i \log \frac{1}{S} \sum_s p(y_i \mid x_i, w_s)

    Args:
        prediction: What ``leanbayes.predict`` returned, made with the likelihood of the targets.
        targets: Targets ``[B, ...]``, in the units the network was trained on; for targets divided by a standard
            deviation s, subtract log s to have the density in the original units.

    Example:
        >>> import torch
        >>> from leanbayes import Gaussian
        >>> prediction = Prediction(torch.zeros(5, 2, 1), Gaussian(1.0))
        >>> log_predictive_density(prediction, torch.tensor([0.0, 1.0]))
        tensor(-1.1689)
    """
    return mean(_log_densities(prediction, targets))


def _log_densities(prediction: Any, targets: Tensor) -> Tensor:
    if not isinstance(prediction, Prediction):
        raise TypeError(f"a log predictive density needs what lb.predict returned, not {type(prediction).__name__}")
    return prediction.log_prob(targets).detach()
