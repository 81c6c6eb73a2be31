"""Accuracy, negative log-likelihood and Brier score over batches and ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import MeanMetric
from leanbayes.metrics.functional._inputs import one_of, positive_int
from leanbayes.metrics.functional.classification import (
    CONVENTIONS,
    TINY,
    _brier_scores,
    _check_eps,
    _hits,
    _log_losses,
)


class Accuracy(MeanMetric):
    """Top-k accuracy; see `functional.accuracy`.

    Args:
        top_k: Number of classes among which the label counts as found.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = Accuracy(top_k=2)
        >>> metric.update(torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]), torch.tensor([1, 0]))
        >>> metric.compute()
        tensor(0.5000)
    """

    higher_is_better = True

    def __init__(self, top_k: int = 1, **kwargs: Any) -> None:
        positive_int(top_k, "top_k")
        super().__init__(f"top{top_k}", **kwargs)
        self.top_k = top_k

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self._add(_hits(probs, labels, self.top_k))


class NLL(MeanMetric):
    """Mean negative log-likelihood of the labels in nats; see `functional.nll`.

    Args:
        eps: Lower limit of the label's probability.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = NLL()
        >>> metric.update(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(1.0397)
    """

    def __init__(self, eps: float = TINY, **kwargs: Any) -> None:
        _check_eps(eps)
        super().__init__(f"nll{eps!r}", **kwargs)
        self.eps = eps

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self._add(_log_losses(probs, labels, self.eps))


class Brier(MeanMetric):
    """Mean Brier score in either convention; see `functional.brier`.

    Args:
        convention: ``"sum"``, from 0 to 2, or ``"tfp"``, lower by 1.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = Brier("tfp")
        >>> metric.update(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(-0.8750)
    """

    def __init__(self, convention: str = "sum", **kwargs: Any) -> None:
        one_of(convention, "convention", CONVENTIONS)
        super().__init__(f"brier_{convention}", **kwargs)
        self.convention = convention

    def update(self, probs: Tensor | Prediction, labels: Tensor) -> None:
        """Take in probabilities ``[B, C]`` or a `Prediction`, and labels ``[B]``."""
        self._add(_brier_scores(probs, labels, self.convention))
