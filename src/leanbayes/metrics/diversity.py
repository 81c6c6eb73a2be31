"""Disagreement of an ensemble's members over batches and ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import BaseMetric, MeanMetric
from leanbayes.metrics.functional.diversity import _disagreements, _member_errors, member_labels, normalise


class Disagreement(MeanMetric):
    """Share of examples that two members label differently; see `functional.disagreement`.

    Args:
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = Disagreement()
        >>> metric.update(torch.tensor([[0, 1], [0, 1], [0, 2]]))
        >>> metric.compute()
        tensor(0.3333)
    """

    higher_is_better = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("disagreement", **kwargs)

    def update(self, members: Tensor | Prediction, labels: Tensor | None = None) -> None:
        """Take in members' labels ``[S, B]``, probabilities ``[S, B, C]`` or a `Prediction`; labels are not used."""
        self._add(_disagreements(member_labels(members)))


class NormalisedDisagreement(BaseMetric):
    """Disagreement over the members' mean error; see `functional.normalised_disagreement`.

    Args:
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = NormalisedDisagreement()
        >>> metric.update(torch.tensor([[0, 1], [0, 1], [0, 2]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(2.)
    """

    higher_is_better = None
    differing: Tensor
    wrong: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("differing", "wrong"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, members: Tensor | Prediction, labels: Tensor) -> None:
        """Take in members' labels ``[S, B]``, probabilities ``[S, B, C]`` or a `Prediction`, and labels ``[B]``."""
        chosen = member_labels(members)
        self.wrong = self.wrong + _member_errors(chosen, labels).sum()
        self.differing = self.differing + _disagreements(chosen).sum()

    def compute(self) -> Tensor:
        """The ratio over all batches and ranks."""
        return normalise(self.differing, self.wrong).float()
