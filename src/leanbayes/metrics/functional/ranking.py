"""Metrics of an order: precision and recall, and the detection of examples from elsewhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import between, checked_tensor, one_of, yes_or_no

SCORES = ("entropy", "mutual_information", "confidence")
SIDES = ("out", "in")


def average_precision(scores: Tensor | Prediction, labels: Tensor) -> Tensor:
    r"""Area under the precision-recall curve (AUC-PR) as average precision.

    .. math:: \sum_n (R_n - R_{n-1}) P_n

    over the distinct scores as thresholds, from the highest; equal scores are one threshold, and nothing is
    interpolated. NaN where there are no positives.

    Args:
        scores: Scores ``[B]`` (or ``[B, 1]``), higher for positives; probabilities ``[B, 2]``, whose second class is
            positive; or a `Prediction` of either.
        labels: 0 or 1, ``[B]``.

    Example:
        >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 0, 1]))
        tensor(0.8333)
    """
    return _average_precision(*_scored(scores, labels)).float()


def ood_auroc(inside: Tensor, outside: Tensor) -> Tensor:
    r"""Area under the ROC curve for telling examples from elsewhere (out of distribution) by their scores.

    .. math:: P(s_\mathrm{out} > s_\mathrm{in}) + \tfrac12 P(s_\mathrm{out} = s_\mathrm{in})

    NaN where either side is empty.

    Args:
        inside: Scores of examples like the training data ``[N]``, such as ``prediction.entropy``.
        outside: Scores of examples from elsewhere ``[M]``; higher means stranger.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.3]), torch.tensor([0.3, 0.8]))
        tensor(0.8750)
    """
    return _auroc(_flat_scores(inside), _flat_scores(outside)).float()


def ood_fpr(inside: Tensor, outside: Tensor, tpr: float = 0.95, *, positive: str = "out") -> Tensor:
    """False positive rate where the true positive rate first reaches a level (FPR95).

    The threshold is the strictest that finds at least the share ``tpr`` of the positives; the result is the share of
    negatives it takes for positives. The literature has both: with ``positive="out"``, the share of familiar examples
    taken for strange when 95 % of the strange are found; with ``positive="in"``, the share of strange examples that
    pass when 95 % of the familiar do. NaN where either side is empty.

    Args:
        inside: Scores of examples like the training data ``[N]``.
        outside: Scores of examples from elsewhere ``[M]``; higher means stranger.
        tpr: The true positive rate to reach.
        positive: ``"out"`` or ``"in"``.

    Example:
        >>> ood_fpr(torch.tensor([0.1, 0.2, 0.6, 0.3]), torch.tensor([0.5, 0.7]))
        tensor(0.2500)
    """
    between(tpr, "tpr", 0, 1)
    one_of(positive, "positive", SIDES)
    return _fpr(_flat_scores(inside), _flat_scores(outside), tpr, positive).float()


def ood_score(prediction: Prediction, kind: str = "entropy") -> Tensor:
    """A score of each example that is higher for stranger ones, ``[B]``.

    Args:
        prediction: A prediction of classes.
        kind: ``"entropy"``, ``"mutual_information"`` or ``"confidence"`` (1 less the largest probability).

    Example:
        >>> ood_score(Prediction(torch.zeros(3, 1, 2)))
        tensor([0.6931])
    """
    one_of(kind, "score", SCORES)
    value = 1 - prediction.confidence if kind == "confidence" else getattr(prediction, kind)
    return value.detach().flatten()


def _scored(scores: Tensor | Prediction, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = checked_tensor(scores.probs if isinstance(scores, Prediction) else scores, "scores")
    labels = checked_tensor(labels, "labels")
    if scores.dim() == 2 and scores.shape[1] in (1, 2):
        scores = scores[:, -1]
    if scores.dim() != 1 or labels.shape not in (scores.shape, (*scores.shape, 1)):
        raise ValueError(
            f"scores of shape {tuple(scores.shape)} do not fit labels of shape {tuple(labels.shape)}; "
            "expected [B] (or [B, 2] probabilities) and [B]"
        )
    return _flat_scores(scores), yes_or_no(labels.flatten()).double()


def _flat_scores(scores: Tensor) -> Tensor:
    scores = checked_tensor(scores, "scores").flatten().double()
    if bool(scores.isnan().any()):
        raise ValueError("the scores contain NaN, which cannot be ranked; remove those examples")
    return scores


def _average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    ordered, order = scores.sort(descending=True)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    found = labels[order].cumsum(0)[last]
    precision = found / (last.nonzero().squeeze(1) + 1)
    steps = found.diff(prepend=found.new_zeros(1))
    return (steps * precision).sum() / labels.sum()


def _auroc(inside: Tensor, outside: Tensor) -> Tensor:
    _, place, count = torch.cat([inside, outside]).unique(return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, so that each pair among them counts one half.
    ranks = count.cumsum(0).double() - (count - 1).double() / 2
    strange = len(outside)
    above = ranks[place[len(inside) :]].sum() - strange * (strange + 1) / 2
    pairs = len(inside) * strange
    return above / pairs if pairs else above.new_tensor(math.nan)


def _fpr(inside: Tensor, outside: Tensor, tpr: float, positive: str) -> Tensor:
    wanted, others = (outside, inside) if positive == "out" else (-inside, -outside)
    if not len(wanted) or not len(others):
        return wanted.new_tensor(math.nan)
    share = torch.arange(1, len(wanted) + 1, dtype=torch.float64, device=wanted.device) / len(wanted)
    threshold = wanted.sort(descending=True).values[(share < tpr).sum()]
    return (others >= threshold).double().mean()
