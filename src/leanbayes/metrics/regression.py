"""Error of real-valued predictions, and coverage and width of their intervals, over batches and ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import MeanMetric
from leanbayes.metrics.functional._inputs import between
from leanbayes.metrics.functional.regression import _covered, _squared_errors, _widths, central_interval

Interval = Prediction | tuple[Tensor, Tensor]


class RMSE(MeanMetric):
    """Root mean squared error; see `functional.rmse`.

    Args:
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = RMSE()
        >>> metric.update(torch.tensor([1.0]), torch.tensor([1.0]))
        >>> metric.update(torch.tensor([2.0]), torch.tensor([4.0]))
        >>> metric.compute()
        tensor(1.4142)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("squared_error", **kwargs)

    def update(self, predicted: Tensor | Prediction, targets: Tensor) -> None:
        """Take in predicted values or a `Prediction`, and targets of the same shape."""
        self._add(_squared_errors(predicted, targets))

    def compute(self) -> Tensor:
        """The root of the mean over all batches and ranks."""
        return self._mean().sqrt().float()


class Coverage(MeanMetric):
    """Share of targets within their intervals; see `functional.coverage`.

    Args:
        level: Probability of the central interval that is taken from a `Prediction`, and so the coverage to expect.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> from leanbayes import Gaussian
        >>> metric = Coverage(level=0.9)
        >>> metric.update(Prediction(torch.zeros(1, 2, 1), Gaussian(1.0)), torch.tensor([1.6, 1.7]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = None

    def __init__(self, level: float = 0.95, **kwargs: Any) -> None:
        between(level, "level", 0, 1)
        super().__init__(f"covered{level!r}", **kwargs)
        self.level = level

    def update(self, interval: Interval, targets: Tensor) -> None:
        """Take in a `Prediction` or a pair of lower and upper ends, and targets of the same shape."""
        self._add(_covered(*_ends(interval, self.level), targets))


class IntervalWidth(MeanMetric):
    """Mean width of intervals; see `functional.interval_width`.

    Args:
        level: Probability of the central interval that is taken from a `Prediction`.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = IntervalWidth()
        >>> metric.update((torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0])))
        >>> metric.compute()
        tensor(2.)
    """

    def __init__(self, level: float = 0.95, **kwargs: Any) -> None:
        between(level, "level", 0, 1)
        super().__init__(f"width{level!r}", **kwargs)
        self.level = level

    def update(self, interval: Interval, targets: Tensor | None = None) -> None:
        """Take in a `Prediction` or a pair of lower and upper ends; targets, as `Coverage` takes, are not used."""
        self._add(_widths(*_ends(interval, self.level)))


def _ends(interval: Interval, level: float) -> tuple[Tensor, Tensor]:
    return central_interval(interval, level) if isinstance(interval, Prediction) else interval
