"""Accuracy, negative log-likelihood and Brier score of class probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import class_probs, mean, one_of, positive_int

CONVENTIONS = ("sum", "tfp")
# Smallest normal float32: a certain and wrong prediction costs 87.3 nats instead of infinitely many.
TINY = torch.finfo(torch.float32).tiny


def accuracy(probs: Tensor | Prediction, labels: Tensor, top_k: int = 1) -> Tensor:
    """Share of examples whose label is among the k most probable classes.

    Of classes with equal probability, those with lower numbers come first, as in ``argmax``.

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        top_k: Number of classes k.

    Example:
        >>> probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]])
        >>> labels = torch.tensor([1, 2])
        >>> accuracy(probs, labels), accuracy(probs, labels, top_k=2)
        (tensor(0.5000), tensor(1.))
    """
    positive_int(top_k, "top_k")
    return mean(_hits(probs, labels, top_k))


def nll(probs: Tensor | Prediction, labels: Tensor, eps: float = TINY) -> Tensor:
    r"""Mean negative log-likelihood, in nats.

    .. math:: -\frac{1}{N} \sum_i \log \max(p_{i, y_i}, \epsilon)

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        eps: Lower limit of the label's probability. The smallest normal float32, 1.2e-38, bounds the
            loss of one example by 87.3 nats; 0 lets it be infinite.

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0]))
        tensor(1.0397)
    """
    _check_eps(eps)
    return mean(_log_losses(probs, labels, eps))


def brier(probs: Tensor | Prediction, labels: Tensor, convention: str = "sum") -> Tensor:
    r"""Mean Brier score.

    ``"sum"`` is Brier's own, from 0 (perfect) to 2, and ``"tfp"`` that of TensorFlow Probability, from -1 to 1,
    which leaves out the constant:

    .. math:: \sum_c (p_c - [c = y])^2 \qquad\text{and}\qquad \sum_c p_c^2 - 2 p_y

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``: two classes), or a `Prediction`.
        labels: Labels ``[B]``.
        convention: ``"sum"`` or ``"tfp"``.

    Example:
        >>> probs, labels = torch.tensor([[0.75, 0.25]]), torch.tensor([0])
        >>> brier(probs, labels), brier(probs, labels, "tfp")
        (tensor(0.1250), tensor(-0.8750))
    """
    one_of(convention, "convention", CONVENTIONS)
    return mean(_brier_scores(probs, labels, convention))


def _hits(probs: Tensor | Prediction, labels: Tensor, top_k: int) -> Tensor:
    probs, labels = class_probs(probs, labels)
    classes = probs.shape[1]
    if top_k > classes:
        raise ValueError(f"top_k={top_k} is more than the {classes} classes there are")
    own = _of_label(probs, labels).unsqueeze(1)
    earlier = torch.arange(classes, device=probs.device) < labels.unsqueeze(1)
    before = (probs > own) | ((probs == own) & earlier)
    return before.sum(1) < top_k


def _log_losses(probs: Tensor | Prediction, labels: Tensor, eps: float) -> Tensor:
    return -_of_label(*class_probs(probs, labels)).double().clamp_min(eps).log()


def _brier_scores(probs: Tensor | Prediction, labels: Tensor, convention: str) -> Tensor:
    probs, labels = class_probs(probs, labels)
    probs = probs.double()
    scores = probs.square().sum(1) - 2 * _of_label(probs, labels)
    return scores + 1 if convention == "sum" else scores


def _of_label(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.gather(1, labels.unsqueeze(1)).squeeze(1)


def _check_eps(eps: Any) -> None:
    if not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ValueError(f"eps is a number from 0 to below 1, not {eps!r}")
