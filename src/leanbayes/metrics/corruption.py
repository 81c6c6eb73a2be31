"""Mean corruption error over batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import BaseMetric
from leanbayes.metrics.functional._inputs import positive_int
from leanbayes.metrics.functional.classification import _hits
from leanbayes.metrics.functional.corruption import check_clean, reference_errors

Reference = Mapping[str, Sequence[float] | float]


class MeanCorruptionError(BaseMetric):
    """Mean corruption error against a reference network's errors; see `functional.mean_corruption_error`.

    NaN until there are examples of every corruption type at every severity.

    Args:
        reference: Top-1 error of the reference network for each corruption type, one for each severity or their mean.
        severities: Number of severities, counted from 1.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = MeanCorruptionError({"fog": 0.5, "snow": 0.625}, severities=1)
        >>> labels = torch.tensor([0, 1])
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), labels, corruption="fog", severity=1)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), labels, corruption="snow", severity=1)
        >>> metric.compute()
        tensor(0.5000)
    """

    wrong: Tensor
    count: Tensor

    def __init__(self, reference: Reference, severities: int = 5, **kwargs: Any) -> None:
        positive_int(severities, "severities")
        # In one order: a MetricCollection lets metrics share states that agree after one batch.
        errors = dict(sorted(reference_errors(reference, severities).items()))
        super().__init__(**kwargs)
        self.corruptions = tuple(errors)
        self.reference = tuple(errors.values())
        self.severities = severities
        # A last row holds examples without corruption, in its first place.
        for name in ("wrong", "count"):
            default = torch.zeros(len(errors) + 1, severities, dtype=torch.int64)
            self.add_state(name, default, dist_reduce_fx="sum")

    def update(
        self, probs: Tensor | Prediction, labels: Tensor, corruption: str | None = None, severity: int = 0
    ) -> None:
        """Take in a batch of one corruption type at one severity.

        Args:
            probs: Probabilities ``[B, C]`` or a `Prediction`.
            labels: Labels ``[B]``.
            corruption: One of the reference's types; None for examples without corruption.
            severity: From 1; 0 for examples without corruption.
        """
        row, column = self._place(corruption, severity)
        hits = _hits(probs, labels, 1)
        self.wrong[row, column] += (~hits).sum()
        self.count[row, column] += hits.numel()

    def compute(self) -> Tensor:
        """The mean over corruption types, of all batches and ranks."""
        errors, _ = self._errors()
        return (errors / errors.new_tensor(self.reference)).mean().float()

    def _errors(self) -> tuple[Tensor, Tensor]:
        """Mean error over severities of each corruption type, and the error without corruption."""
        errors = self.wrong.double() / self.count
        return errors[:-1].mean(1), errors[-1, 0]

    def _place(self, corruption: str | None, severity: int) -> tuple[int, int]:
        if corruption is None and severity == 0:
            return len(self.corruptions), 0
        if corruption not in self.corruptions:
            raise ValueError(f"corruption {corruption!r} has no reference error; there are {self.corruptions}")
        if severity not in range(1, self.severities + 1):
            raise ValueError(f"severity is a whole number from 1 to {self.severities}, not {severity!r}")
        return self.corruptions.index(corruption), severity - 1


class RelativeMeanCorruptionError(MeanCorruptionError):
    """What corruption adds to the error, relative to a reference; see `functional.relative_mean_corruption_error`.

    NaN until there are examples without corruption too.

    Args:
        reference: Top-1 error of the reference network for each corruption type, one for each severity or their mean.
        reference_clean: Its error without corruption.
        severities: Number of severities, counted from 1.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = RelativeMeanCorruptionError({"fog": 0.5}, reference_clean=0.25, severities=1)
        >>> labels = torch.tensor([0, 1])
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), labels)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), labels, corruption="fog", severity=1)
        >>> metric.compute()
        tensor(2.)
    """

    def __init__(self, reference: Reference, reference_clean: float, severities: int = 5, **kwargs: Any) -> None:
        check_clean(reference_clean, "reference_clean")
        super().__init__(reference, severities, **kwargs)
        self.reference_clean = reference_clean

    def compute(self) -> Tensor:
        """The mean over corruption types, of all batches and ranks."""
        errors, clean = self._errors()
        reference = errors.new_tensor(self.reference)
        return ((errors - clean) / (reference - self.reference_clean)).mean().float()
