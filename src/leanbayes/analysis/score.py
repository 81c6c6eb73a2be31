"""Accuracy and loss of a classifier, of one sample and of the average over samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes.analysis._data import batches, check_labelled, check_scores
from leanbayes.training.seeds import derive

# Rows whose samples are held at once.
_ROWS = 1024


@dataclass(frozen=True)
class Score:
    """How well labels are predicted.

    Attributes:
        accuracy: Of the class probabilities averaged over samples.
        nll: Of the same, in nats per example.
        sample_accuracy: Of a single sample, the mean over samples.
        sample_nll: Of the same.
    """

    accuracy: float
    nll: float
    sample_accuracy: float
    sample_nll: float


def measure(model: nn.Module, x: Tensor, y: Tensor, samples: int, batch_size: int | None, seed: int) -> Score:
    """Score a model on labelled data, on its device, with draws that only the seed and the batch size decide."""
    check_labelled(x, y, batch_size)
    sums = []
    for number, (rows, labels) in enumerate(batches(model, x, y, batch_size or _ROWS)):
        outputs = predict(model, rows, samples, seed=derive(seed, "score", number)).outputs  # [S, B, C]
        if number == 0:
            check_scores(outputs.shape[1:], y)
        sums.append(_sums(outputs.double().log_softmax(-1), labels))
    return Score(*(torch.stack(sums).sum(0) / len(x)).tolist())


def _sums(log_probs: Tensor, y: Tensor) -> Tensor:
    """The four scores of a batch, summed over its examples."""
    averaged = log_probs.logsumexp(0) - math.log(len(log_probs))
    scores = [_hits(averaged, y), _losses(averaged, y), _hits(log_probs, y).mean(0), _losses(log_probs, y).mean(0)]
    return torch.stack(scores).sum(1)


def _hits(log_probs: Tensor, y: Tensor) -> Tensor:
    return (log_probs.argmax(-1) == y).double()


def _losses(log_probs: Tensor, y: Tensor) -> Tensor:
    return -log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
