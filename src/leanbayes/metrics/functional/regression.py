"""Error of real-valued predictions, and coverage and width of their intervals."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import between, checked_tensor, mean
from leanbayes.objectives.likelihoods import Bernoulli, Categorical


def rmse(predicted: Tensor | Prediction, targets: Tensor) -> Tensor:
    r"""Root mean squared error over all elements of all targets.

    .. math:: \sqrt{\frac{1}{N} \sum_i (\hat y_i - y_i)^2}

    Args:
        predicted: Predicted values ``[B, ...]``, or a `Prediction`, whose mean is taken.
        targets: Targets of the same shape (``[B]`` also fits ``[B, 1]``).

    Example:
        >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        tensor(1.4142)
    """
    return _squared_errors(predicted, targets).mean().sqrt().float()


def central_interval(prediction: Prediction, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Quantiles of the predictive distribution that leave out equal tails, together ``1 - level``.

    Args:
        prediction: A prediction of real values.
        level: Probability between the two.

    Example:
        >>> from leanbayes import Gaussian
        >>> lower, upper = central_interval(Prediction(torch.zeros(1, 1, 1), Gaussian(1.0)), 0.9)
        >>> lower, upper
        (tensor([[-1.6449]]), tensor([[1.6449]]))
    """
    between(level, "level", 0, 1)
    if isinstance(prediction.likelihood, Categorical | Bernoulli):
        raise ValueError("intervals are for real targets, but this prediction is of classes; use calibration metrics")
    lower, upper = prediction.quantile([(1 - level) / 2, (1 + level) / 2])
    return lower, upper


def coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    r"""Share of targets within their intervals, ends included.

    .. math:: \frac{1}{N} \sum_i [l_i \le y_i \le u_i]

    Args:
        lower: Lower ends ``[B, ...]``; see `central_interval`.
        upper: Upper ends.
        targets: Targets of the same shape (``[B]`` also fits ``[B, 1]``).

    Example:
        >>> coverage(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.5]))
        tensor(0.5000)
    """
    return mean(_covered(lower, upper, targets))


def interval_width(lower: Tensor, upper: Tensor) -> Tensor:
    r"""Mean width of intervals.

    .. math:: \frac{1}{N} \sum_i (u_i - l_i)

    Args:
        lower: Lower ends ``[B, ...]``; see `central_interval`.
        upper: Upper ends.

    Example:
        >>> interval_width(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    return mean(_widths(lower, upper))


def _squared_errors(predicted: Tensor | Prediction, targets: Tensor) -> Tensor:
    values = predicted.mean if isinstance(predicted, Prediction) else checked_tensor(predicted, "predictions")
    values, targets = _aligned(values.detach(), targets)
    return (values - targets).square().flatten()


def _covered(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    _widths(lower, upper)
    lower, wanted = _aligned(lower, targets)
    upper, _ = _aligned(upper, targets)
    return ((lower <= wanted) & (wanted <= upper)).flatten()


def _widths(lower: Tensor, upper: Tensor) -> Tensor:
    lower, upper = checked_tensor(lower, "lower ends"), checked_tensor(upper, "upper ends")
    if lower.shape != upper.shape:
        raise ValueError(f"lower ends of shape {tuple(lower.shape)} do not fit upper ends {tuple(upper.shape)}")
    if not bool((lower <= upper).all()):
        raise ValueError("some intervals have a lower end above their upper end, or NaN; swap or repair them")
    return (upper.double() - lower.double()).flatten()


def _aligned(values: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64 and one shape: ``[B, 1]`` and ``[B]`` would otherwise broadcast to ``[B, B]``."""
    targets = checked_tensor(targets, "targets")
    if not bool(torch.isfinite(targets).all()):
        raise ValueError("the targets contain NaN or infinite values; remove those examples")
    if values.shape == (*targets.shape, 1):
        targets = targets.unsqueeze(-1)
    elif targets.shape == (*values.shape, 1):
        values = values.unsqueeze(-1)
    if values.shape != targets.shape:
        raise ValueError(
            f"predictions of shape {tuple(values.shape)} do not fit targets of shape {tuple(targets.shape)}"
        )
    return values.double(), targets.double()
