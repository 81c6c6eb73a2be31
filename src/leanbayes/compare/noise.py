"""The noise of a regression, fitted along with the network."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from leanbayes.objectives import Gaussian
from leanbayes.objectives.noise import LEAST_VARIANCE
from leanbayes.training import EpochEnd


def fit_noise(likelihood: Gaussian) -> Callable[[EpochEnd], None]:
    r"""A callback of `fit` that sets the precision after each epoch to the one that explains its residuals best.

    With residuals r and precision p, the epoch's mean NLL is ``(p E[r^2] - log p + log 2 pi) / 2``, which gives
    ``E[r^2]`` under the posterior. The ELBO is largest at ``p = 1 / E[r^2]``. A gradient would not get there in a short
    training: Adam moves the logarithm by no more than the sum of the learning rates.

    Args:
        likelihood: With a number as its precision; changed in place.

    Returns:
        The callback.
    """

    def update(event: EpochEnd) -> None:
        # Looked up each time: moving the likelihood to a device makes another tensor.
        log_precision = likelihood.fixed_log_precision
        assert isinstance(log_precision, Tensor)
        before = float(log_precision)
        square = (2 * event.record["nll"] - math.log(2 * math.pi) + before) / math.exp(before)
        log_precision.fill_(-math.log(max(square, LEAST_VARIANCE)))
        if likelihood.held_out:
            # Predictions keep the noise of the held-out rows.
            likelihood.log_factor += float(log_precision) - before

    return update
