"""How often the members of an ensemble disagree."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import checked_tensor, mean
from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Gaussian


def disagreement(members: Tensor | Prediction) -> Tensor:
    r"""Share of examples that two members label differently, averaged over all pairs of members.

    .. math:: \frac{2}{S (S - 1)} \sum_{s < t} \frac{1}{N} \sum_i [\hat y_{si} \ne \hat y_{ti}]

    Args:
        members: Labels ``[S, B]`` of each member, probabilities or logits ``[S, B, C]``, or a `Prediction` that keeps
            its outputs, whose samples are the members.

    Example:
        >>> disagreement(torch.tensor([[0, 1], [0, 1], [0, 2]]))
        tensor(0.3333)
    """
    return mean(_disagreements(member_labels(members)))


def normalised_disagreement(
    members: Tensor | Prediction, labels: Tensor, *, accuracy: float | Tensor | None = None
) -> Tensor:
    r"""Disagreement over the error, since members that err more often differ more by chance alone.

    .. math:: \mathrm{disagreement} / (1 - \mathrm{accuracy})

    NaN where the accuracy is 1.

    Args:
        members: See `disagreement`.
        labels: Labels ``[B]``.
        accuracy: The accuracy to divide by, such as that of the averaged prediction; None takes the members' mean.

    Example:
        >>> normalised_disagreement(torch.tensor([[0, 1], [0, 1], [0, 2]]), torch.tensor([0, 1]))
        tensor(2.)
    """
    chosen = member_labels(members)
    error = _member_errors(chosen, labels).mean() if accuracy is None else 1 - torch.as_tensor(accuracy).double()
    return normalise(_disagreements(chosen).mean(), error).float()


def normalise(disagreement: Tensor, error: Tensor) -> Tensor:
    """The ratio, NaN where no member errs."""
    return torch.where(error > 0, disagreement / error, torch.nan)


def member_labels(members: Tensor | Prediction) -> Tensor:
    """The label each member gives each example, ``[S, N]``."""
    chosen = _predicted_labels(members) if isinstance(members, Prediction) else _tensor_labels(members)
    if len(chosen) < 2:
        raise ValueError(f"disagreement takes at least 2 members, not {len(chosen)}; predict with more samples")
    return chosen.flatten(1)


def _predicted_labels(prediction: Prediction) -> Tensor:
    likelihood, outputs = prediction.likelihood, prediction.outputs.detach()
    if isinstance(likelihood, Gaussian):
        raise ValueError("disagreement is between class labels, but this prediction is of real values; use .std")
    if isinstance(likelihood, Bernoulli):
        return (outputs > 0).long()
    if likelihood is None and outputs.dim() > 3:
        likelihood = Categorical()  # says that it has to be told where the classes are
    return _tensor_labels(likelihood.classes_last(outputs) if isinstance(likelihood, Categorical) else outputs)


def _tensor_labels(members: Tensor) -> Tensor:
    members = checked_tensor(members, "members")
    if members.is_floating_point():
        if members.dim() < 3:
            raise ValueError(f"members' probabilities are [S, B, C], not {tuple(members.shape)}")
        return members.argmax(-1)
    if members.dim() < 2:
        raise ValueError(f"members' labels are [S, B], not {tuple(members.shape)}")
    return members.long()


def _disagreements(chosen: Tensor) -> Tensor:
    """Share of pairs that differ, of each example: ``[N]``."""
    count = len(chosen)
    ordered = chosen.sort(0).values
    position = torch.arange(count, device=chosen.device).unsqueeze(1).expand_as(ordered)
    # Each member agrees with those before it in its run of equal labels.
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    agreeing = (position - torch.where(starts, position, 0).cummax(0).values).sum(0)
    return 1 - 2 * agreeing.double() / (count * (count - 1))


def _member_errors(chosen: Tensor, labels: Tensor) -> Tensor:
    """Share of members that are wrong, of each example: ``[N]``."""
    labels = checked_tensor(labels, "labels")
    if labels.numel() != chosen.shape[1]:
        raise ValueError(f"{chosen.shape[1]} examples do not fit labels of shape {tuple(labels.shape)}")
    return (chosen != labels.flatten()).double().mean(0)
