"""Temperature scaling: one number that makes a classifier as sure as it should be on average."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Likelihood

# Temperatures between which the best one is looked for, and how finely.
_LOWEST, _HIGHEST = 0.05, 20.0
_GRID, _STEPS = 41, 40
_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def fit_temperature(outputs: Tensor | Prediction, labels: Tensor) -> float:
    """The temperature T that gives held-out labels the highest probability (Guo et al. 2017).

    For a model with S samples it is that of the average: ``mean_s softmax(outputs_s / T)``. Fit it on data that the
    model was not trained on, and predict with ``likelihood=lb.Categorical(temperature=T)``. With one label for every
    pixel or token, all of them count alike. A prediction that was made with `Bernoulli` is fitted for
    ``lb.Bernoulli(temperature=T)``.

    Args:
        outputs: Class scores ``[S, B, C]`` or ``[B, C]``, or a `Prediction` that has kept its outputs.
        labels: Classes ``[B]``, or the targets ``[B, ...]`` of the prediction's likelihood.

    Returns:
        T, from 0.05 to 20.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
        >>> round(fit_temperature(scores, torch.tensor([0, 0, 1, 1])), 2)  # sure, and wrong in one of four
        3.64
    """
    likelihood: Likelihood = Categorical()
    if isinstance(outputs, Prediction):
        if outputs.outputs is None:
            raise ValueError("the prediction did not keep its outputs; predict with keep='outputs'")
        likelihood, outputs = outputs.likelihood or likelihood, outputs.outputs
        if not isinstance(likelihood, Categorical | Bernoulli):
            raise ValueError(f"a temperature is for classes, but this prediction has a {type(likelihood).__name__}")
    else:
        outputs = outputs.unsqueeze(0) if outputs.dim() == 2 else outputs
        if outputs.dim() != 3 or labels.shape != outputs.shape[1:2]:
            raise ValueError(
                f"fit_temperature takes scores [S, B, C] or [B, C] and labels [B], not {tuple(outputs.shape)} and "
                f"{tuple(labels.shape)}; for outputs of another shape, pass the Prediction"
            )
    labels, scores = labels.to(outputs.device), outputs.double()
    likelihood.check(scores, labels)
    counts = torch.ones_like(labels, dtype=torch.bool)
    if isinstance(likelihood, Categorical) and not labels.is_floating_point():
        counts = labels != likelihood.ignore_index
    if not counts.any():
        raise ValueError("there is no label to fit a temperature to")

    def loss(log_temperature: float) -> float:
        tempered = copy.copy(likelihood)
        tempered.temperature = math.exp(log_temperature)
        each = tempered.elementwise(scores, labels)  # [S, B, ...]; 0 where a label does not count
        return float(-(each.logsumexp(0) - math.log(len(each))).sum())

    return math.exp(_minimum(loss, math.log(_LOWEST), math.log(_HIGHEST)))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one number is least: the best of a grid, then by the golden section around it."""
    grid = [low + (high - low) * k / (_GRID - 1) for k in range(_GRID)]
    best = min(range(_GRID), key=lambda k: function(grid[k]))
    low, high = grid[max(0, best - 1)], grid[min(_GRID - 1, best + 1)]
    for _ in range(_STEPS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if function(left) <= function(right) else (left, high)
    return (low + high) / 2
