"""Whether the predictive distributions of real targets are as wide as they should be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.compare.units import moments, restored
from leanbayes.data._normalise import Affine
from leanbayes.metrics import functional as F
from leanbayes.objectives.likelihoods import Gaussian

_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_BINS = 10
_SHOWN = 40


def probability_transform(prediction: Prediction, y: Tensor) -> Tensor:
    r"""Where each target lies in its predictive distribution, from 0 to 1 ``[N]``.

    .. math:: u_i = \frac{1}{S} \sum_s \Phi\left(\frac{y_i - m_{si}}{\sqrt{v_{si}}}\right)

    Uniform where the distributions are right.
    """
    assert isinstance(prediction.likelihood, Gaussian)
    mean, log_var = prediction.likelihood.split(prediction.outputs)
    z = (y.reshape(mean.shape[1:]).double() - mean.double()) / (0.5 * log_var.double()).exp()
    return torch.special.ndtr(z).mean(0).flatten()


def calibration(prediction: Prediction, y: Tensor) -> dict[str, Any]:
    """Coverage of the central intervals by level, and how the targets spread over ten equal parts."""
    u = probability_transform(prediction, y)
    inside = [float(((u - 0.5).abs() <= level / 2).double().mean()) for level in _LEVELS]
    counts = torch.histc(u, _BINS, 0, 1).long().tolist()
    return {"level": list(_LEVELS), "coverage": inside, "pit": counts}


def intervals(prediction: Prediction, y: Tensor, level: float, scale: Affine | None = None) -> dict[str, list[float]]:
    """Some test examples in the order of their predictions, evenly spaced, in the units of the data.

    Args:
        prediction: Of the examples.
        y: Their targets, as the network was fitted to them.
        level: Of the intervals.
        scale: How the targets were scaled, None where they were not.

    Returns:
        Predicted means, ends of the intervals, and targets.
    """
    centre = moments(prediction, scale)[0].flatten()
    order = centre.argsort(stable=True)
    chosen = order[torch.linspace(0, len(order) - 1, min(_SHOWN, len(order))).round().long()]
    lower, upper = (bound.flatten() for bound in F.central_interval(prediction, level))
    columns = {"lower": lower, "upper": upper, "target": y.flatten()}
    shown = {name: restored(values[chosen], scale).tolist() for name, values in columns.items()}
    return {"mean": centre[chosen].tolist(), **shown}
