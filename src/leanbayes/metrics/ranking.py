"""Precision and recall, and the detection of examples from elsewhere, over batches and ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics._base import ListMetric
from leanbayes.metrics.functional._inputs import between, one_of, yes_or_no
from leanbayes.metrics.functional.ranking import (
    SCORES,
    SIDES,
    _auroc,
    _average_precision,
    _flat_scores,
    _fpr,
    _scored,
    ood_score,
)


class AUCPR(ListMetric):
    """Area under the precision-recall curve; see `functional.average_precision`.

    Args:
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = AUCPR()
        >>> metric.update(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]))
        >>> metric.compute()
        tensor(0.8333)
    """

    higher_is_better = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("scores", "positives", **kwargs)

    def update(self, scores: Tensor | Prediction, labels: Tensor) -> None:
        """Take in scores ``[B]``, probabilities ``[B, 2]`` or a `Prediction`, and labels of 0 and 1 ``[B]``."""
        self._append(*_scored(scores, labels))

    def compute(self) -> Tensor:
        """The area over all batches and ranks."""
        return _average_precision(*self._all()).float()


class _OutOfDistribution(ListMetric):
    """Keeps scores, and which of them are of examples from elsewhere."""

    def __init__(self, score: str = "entropy", **kwargs: Any) -> None:
        one_of(score, "score", SCORES)
        super().__init__(f"{score}_scores", f"{score}_outside", **kwargs)
        self.score = score

    def update(self, scores: Tensor | Prediction, outside: bool | Tensor) -> None:
        """Take in scores ``[B]`` (higher means stranger) or a `Prediction`, and whether they are from elsewhere.

        Args:
            scores: The scores, or the prediction that gives them.
            outside: True or False for the whole batch, or for each example ``[B]``.
        """
        scores = _flat_scores(ood_score(scores, self.score) if isinstance(scores, Prediction) else scores)
        flags = yes_or_no(torch.as_tensor(outside, device=scores.device))
        if flags.numel() not in (1, len(scores)):
            raise ValueError(f"{len(scores)} scores do not fit flags of shape {tuple(flags.shape)}; expected one each")
        self._append(scores, flags.flatten().expand(len(scores)))

    def _sides(self) -> tuple[Tensor, Tensor]:
        scores, outside = self._all()
        return scores[outside == 0], scores[outside == 1]


class OODAUROC(_OutOfDistribution):
    """Area under the ROC curve for telling examples from elsewhere; see `functional.ood_auroc`.

    Args:
        score: What is taken from a `Prediction`: ``"entropy"``, ``"mutual_information"`` or ``"confidence"``.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = OODAUROC()
        >>> metric.update(torch.tensor([0.1, 0.3]), outside=False)
        >>> metric.update(torch.tensor([0.3, 0.8]), outside=True)
        >>> metric.compute()
        tensor(0.8750)
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """The area over all batches and ranks."""
        return _auroc(*self._sides()).float()


class OODFPR(_OutOfDistribution):
    """False positive rate at a true positive rate (FPR95); see `functional.ood_fpr`.

    Args:
        score: What is taken from a `Prediction`: ``"entropy"``, ``"mutual_information"`` or ``"confidence"``.
        tpr: The true positive rate to reach.
        positive: ``"out"`` or ``"in"``: which side is to be found.
        kwargs: For ``torchmetrics.Metric``.

    Example:
        >>> metric = OODFPR()
        >>> metric.update(torch.tensor([0.1, 0.2, 0.6, 0.3]), outside=False)
        >>> metric.update(torch.tensor([0.5, 0.7]), outside=True)
        >>> metric.compute()
        tensor(0.2500)
    """

    def __init__(self, score: str = "entropy", *, tpr: float = 0.95, positive: str = "out", **kwargs: Any) -> None:
        between(tpr, "tpr", 0, 1)
        one_of(positive, "positive", SIDES)
        super().__init__(score, **kwargs)
        self.tpr = tpr
        self.positive = positive

    def compute(self) -> Tensor:
        """The rate over all batches and ranks."""
        return _fpr(*self._sides(), self.tpr, self.positive).float()
