"""What the metric classes share: states that sync across ranks, held in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class BaseMetric(Metric):
    """A metric whose state after two batches is the sum, or the concatenation, of the states after each."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the states; torchmetrics gives it to the stand-in for a list on a rank without examples."""
        return torch.float64


class MeanMetric(BaseMetric):
    """Mean of one value per example.

    Args:
        key: Names the states. It holds every setting that changes the values, because a ``MetricCollection`` lets
            metrics share their states when names and values agree after one batch.
        kwargs: For ``torchmetrics.Metric``.
    """

    def __init__(self, key: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._total, self._count = f"{key}_total", f"{key}_count"
        self.add_state(self._total, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state(self._count, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        # Not in place, so that the sum is in float64 whatever dtype the metric was moved to.
        setattr(self, self._total, getattr(self, self._total) + values.double().sum())
        setattr(self, self._count, getattr(self, self._count) + values.numel())

    def _mean(self) -> Tensor:
        return getattr(self, self._total) / getattr(self, self._count)

    def compute(self) -> Tensor:
        """The mean over all batches and ranks."""
        return self._mean().float()


class ListMetric(BaseMetric):
    """Keeps values of every example, for metrics that need them all at once.

    Args:
        names: Names of the states; see `MeanMetric` on what they hold.
        kwargs: For ``torchmetrics.Metric``.
    """

    def __init__(self, *names: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names = names
        for name in names:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _append(self, *values: Tensor) -> None:
        for name, value in zip(self._names, values):
            getattr(self, name).append(value.double())

    def _all(self) -> list[Tensor]:
        return [self._joined(getattr(self, name)) for name in self._names]

    def _joined(self, state: Tensor | list[Tensor]) -> Tensor:
        # Ranks that were merged leave a tensor, batches a list.
        if isinstance(state, Tensor):
            return state
        return torch.cat(state) if state else torch.empty(0, dtype=torch.float64, device=self.device)
