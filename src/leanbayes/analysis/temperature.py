"""Temperature scaling: one number that makes a classifier as sure as it should be on average."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.objectives.likelihoods import check_labels

# Temperatures between which the best one is looked for, and how finely.
_LOWEST, _HIGHEST = 0.05, 20.0
_GRID, _STEPS = 41, 40
_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def fit_temperature(outputs: Tensor | Prediction, labels: Tensor) -> float:
    """The temperature T that gives held-out labels the highest probability (Guo et al. 2017).

    For a model with S samples it is that of the average: ``mean_s softmax(outputs_s / T)``. Fit it on data that the
    model was not trained on, and predict with ``likelihood=lb.Categorical(temperature=T)``.

    Args:
        outputs: Class scores ``[S, B, C]`` or ``[B, C]``, or a `Prediction` that has kept its outputs.
        labels: Classes ``[B]``.

    Returns:
        T, from 0.05 to 20.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
        >>> round(fit_temperature(scores, torch.tensor([0, 0, 1, 1])), 2)  # sure, and wrong in one of four
        3.64
    """
    if isinstance(outputs, Prediction):
        if outputs.outputs is None:
            raise ValueError("the prediction did not keep its outputs; predict with keep='outputs'")
        outputs = outputs.outputs
    if outputs.dim() == 2:
        outputs = outputs.unsqueeze(0)
    if outputs.dim() != 3 or labels.shape != outputs.shape[1:2] or not len(labels):
        raise ValueError(
            f"fit_temperature takes scores [S, B, C] or [B, C] and labels [B], not {tuple(outputs.shape)} and "
            f"{tuple(labels.shape)}"
        )
    labels = labels.to(outputs.device).long()
    check_labels(labels, outputs.shape[-1])
    scores = outputs.double()

    def loss(log_temperature: float) -> float:
        log_probs = (scores / math.exp(log_temperature)).log_softmax(-1)
        chosen = log_probs.gather(-1, labels.expand(len(scores), -1).unsqueeze(-1)).squeeze(-1)  # [S, B]
        return float(-(chosen.logsumexp(0) - math.log(len(scores))).mean())

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
