"""How good the predictions of an evaluation are, over all its targets."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional.calibration import expected_calibration_error_of
from leanbayes.objectives.likelihoods import Categorical, Gaussian, Likelihood

# What there is of every class label.
_OF_LABELS = ("nll", "accuracy", "confidence", "entropy", "mutual_information")


def is_labelled(likelihood: Likelihood, y: Tensor) -> bool:
    """Whether targets are class labels."""
    return isinstance(likelihood, Categorical) and not y.is_floating_point()


class Scores:
    """Scores of every target, gathered batch by batch.

    Args:
        likelihood: How outputs were read.
    """

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.rows: list[Tensor] = []

    @staticmethod
    def of(prediction: Prediction, y: Tensor) -> Tensor:
        """Scores ``[B, T, k]`` of a batch, the log-probability first; NaN for targets that do not count.

        Of class labels also whether they were predicted, the confidence, entropy and mutual information; of real
        targets also the squared error.
        """
        likelihood = prediction.likelihood
        assert likelihood is not None
        if isinstance(likelihood, Categorical) and is_labelled(likelihood, y):
            ignored = y == likelihood.ignore_index
            labels = y.masked_fill(ignored, 0)
            chosen = prediction.probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            log_prob = chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log()
            parts = [log_prob, prediction.label == labels, prediction.confidence, prediction.entropy]
            found = torch.stack([part.to(log_prob) for part in (*parts, prediction.mutual_information)], -1)
            return found.masked_fill(ignored.unsqueeze(-1), torch.nan).reshape(len(y), -1, len(_OF_LABELS))
        parts = [prediction.log_prob(y)]
        if isinstance(likelihood, Gaussian):
            squares = (prediction.mean.reshape(y.shape) - y).square()
            parts.append(squares.reshape(len(y), -1).mean(1))
        return torch.stack(parts, -1).unsqueeze(1)

    def add(self, scores: Tensor) -> None:
        """Take in scores ``[B, T, k]``."""
        rows = scores.flatten(0, 1).float().cpu()
        self.rows.append(rows[~rows[:, 0].isnan()])

    def summary(self) -> dict[str, float]:
        """Means over all targets, and the ECE of class labels."""
        if not self.rows:
            return {}
        rows = torch.cat(self.rows).double()
        if isinstance(self.likelihood, Gaussian):
            return {"nll": -rows[:, 0].mean().item(), "rmse": rows[:, 1].mean().sqrt().item()}
        if rows.shape[1] == 1:
            return {"nll": -rows[:, 0].mean().item()}
        means = dict(zip(_OF_LABELS, rows.mean(0).tolist()))
        means["nll"] = -means["nll"]
        return means | {"ece": expected_calibration_error_of(rows[:, 2], rows[:, 1]).item()}
