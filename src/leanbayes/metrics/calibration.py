"""Calibration errors over batches and ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import BaseMetric, ListMetric
from leanbayes.metrics.functional.calibration import (
    ReliabilityTable,
    _adaptive,
    _classwise,
    _entries,
    _equal_width,
    _expected,
    _maximum,
    _table,
    _top_label,
    _width_sums,
    check_bins,
    check_threshold,
)


class _Binned(BaseMetric):
    """Sums over bins of equal width."""

    bin_sums: Tensor

    def __init__(self, bins: int = 15, *, min_count: int = 1, **kwargs: Any) -> None:
        check_bins(bins, min_count)
        super().__init__(**kwargs)
        self.bins = bins
        self.min_count = min_count
        self.add_state("bin_sums", torch.zeros(3, bins, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self.bin_sums = self.bin_sums + _width_sums(probs, labels, self.bins)


class ECE(_Binned):
    """Expected calibration error; see `functional.expected_calibration_error`.

    Args:
        bins: Number of bins of equal width.
        min_count: Bins with fewer examples, over all batches and ranks, are dropped.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = ECE(bins=4)
        >>> metric.update(torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([0, 1, 0]))
        >>> metric.compute()
        tensor(0.1667)
    """

    def compute(self) -> Tensor:
        """The error over all batches and ranks."""
        return _expected(self.bin_sums, self.min_count).float()


class MCE(_Binned):
    """Maximum calibration error; see `functional.max_calibration_error`.

    Args:
        bins: Number of bins of equal width.
        min_count: Bins with fewer examples, over all batches and ranks, are dropped.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = MCE(bins=4)
        >>> metric.update(torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([0, 1, 0]))
        >>> metric.compute()
        tensor(0.2000)
    """

    def compute(self) -> Tensor:
        """The error over all batches and ranks."""
        return _maximum(self.bin_sums, self.min_count).float()


class Reliability(_Binned):
    """The table of a reliability diagram; see `functional.reliability_table`.

    Args:
        bins: Number of bins of equal width.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = Reliability(bins=2)
        >>> metric.update(torch.tensor([[0.6, 0.4], [0.2, 0.8]]), torch.tensor([0, 0]))
        >>> metric.compute().accuracy
        tensor([   nan, 0.5000])
    """

    higher_is_better = None

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(bins, **kwargs)

    def compute(self) -> ReliabilityTable:
        """The table over all batches and ranks."""
        return _table(self.bin_sums, _equal_width(self.bins, self.bin_sums.device))


class ACE(ListMetric):
    """Adaptive calibration error; see `functional.adaptive_calibration_error`.

    Args:
        bins: Number of bins, which hold equally many examples of all batches and ranks.
        min_count: Bins with fewer examples are dropped.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = ACE(bins=2)
        >>> metric.update(torch.tensor([[0.6, 0.4], [0.2, 0.8]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.3, 0.7], [0.1, 0.9]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.1500)
    """

    def __init__(self, bins: int = 15, *, min_count: int = 1, **kwargs: Any) -> None:
        check_bins(bins, min_count)
        super().__init__("confidence", "hits", **kwargs)
        self.bins = bins
        self.min_count = min_count

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self._append(*_top_label(probs, labels))

    def compute(self) -> Tensor:
        """The error over all batches and ranks."""
        confidence, hits = self._all()
        return _adaptive(confidence, hits, self.bins, self.min_count).float()


class TCE(ListMetric):
    """Thresholded calibration error of every class; see `functional.thresholded_calibration_error`.

    It keeps every probability of at least the threshold.

    Args:
        bins: Number of bins for each class.
        threshold: Probabilities below it are left out.
        adaptive: Whether bins hold equally many examples, instead of having equal width.
        min_count: Bins with fewer examples are dropped.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = TCE(bins=2)
        >>> metric.update(torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    def __init__(
        self,
        bins: int = 15,
        *,
        threshold: float = 0.01,
        adaptive: bool = True,
        min_count: int = 1,
        **kwargs: Any,
    ) -> None:
        check_bins(bins, min_count)
        check_threshold(threshold)
        super().__init__(*(f"{name}{threshold!r}" for name in ("values", "classes", "class_hits")), **kwargs)
        self.bins = bins
        self.threshold = threshold
        self.adaptive = adaptive
        self.min_count = min_count

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self._append(*_entries(probs, labels, self.threshold))

    def compute(self) -> Tensor:
        """The error over all batches and ranks."""
        values, classes, hits = self._all()
        return _classwise(values, classes, hits, self.bins, self.adaptive, self.min_count).float()
