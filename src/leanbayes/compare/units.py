"""Predictions of real targets in the units of the data, whatever scale the network was fitted on."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.data._normalise import Affine
from leanbayes.objectives.likelihoods import Gaussian


def moments(prediction: Prediction, scale: Affine | None) -> tuple[Tensor, Tensor]:
    r"""Predictive mean and standard deviation ``[N, ...]`` of each example.

    On a logarithmic scale, each sample is a log-normal distribution of the targets, with

    .. math:: \mathbb{E}[y] = e^{m + v / 2}, \qquad \mathbb{E}[y^2] = e^{2 m + 2 v}.

    Args:
        prediction: Of targets as the network was fitted to them.
        scale: How they were scaled, None where they were not.
    """
    mean, std = prediction.mean.double(), prediction.std.double()
    if scale is None:
        return mean, std
    if not scale.log:
        return scale.inverse(mean), scale.inverse_std(std)
    assert isinstance(prediction.likelihood, Gaussian)
    outputs, log_var = (part.double() for part in prediction.likelihood.split(prediction.outputs))
    centre = scale.inverse_log(outputs)
    variance = (log_var.exp() * scale.std[0] ** 2).expand_as(centre)
    first, second = (centre + variance / 2).exp().mean(0), (2 * centre + 2 * variance).exp().mean(0)
    return first, (second - first.square()).clamp_min(0).sqrt()


def restored(values: Tensor, scale: Affine | None) -> Tensor:
    """Quantiles or targets in the units of the data."""
    return values.double() if scale is None else scale.inverse(values.double())


def log_density(prediction: Prediction, y: Tensor, scale: Affine | None) -> Tensor:
    """Log density ``[N]`` of targets in the units of the data.

    Args:
        prediction: Of the examples.
        y: Their targets ``[N]``, as the network was fitted to them.
        scale: How they were scaled, None where they were not.
    """
    found = prediction.log_prob(y).double()
    return found if scale is None else found + scale.log_slope(y.double())


def squared_errors(prediction: Prediction, y: Tensor, scale: Affine | None) -> Tensor:
    """Squared error ``[N]`` of the predictive means in the units of the data; for the arguments see `log_density`."""
    if scale is not None and scale.log:
        return (moments(prediction, scale)[0].reshape(y.shape) - scale.inverse(y.double())).square()
    unit = 1.0 if scale is None else scale.std[0]
    return ((prediction.mean.reshape(y.shape) - y).double() * unit).square()


def root_mean(squares: Tensor) -> float:
    """Root of the mean of squares."""
    return float(torch.sqrt(squares.mean()))
