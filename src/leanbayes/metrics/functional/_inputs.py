"""Checks on tensors that several metrics share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction


def class_probs(probs: Tensor | Prediction, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities ``[N, C]`` and labels ``[N]``, checked.

    Takes ``[..., C]`` with labels ``[...]``, or the probability of a yes in ``[N]`` or ``[N, 1]``, which becomes two
    classes.
    """
    probs = checked_tensor(probs.probs if isinstance(probs, Prediction) else probs, "probabilities")
    labels = checked_tensor(labels, "labels")
    if not probs.is_floating_point():
        raise TypeError(f"probabilities are floating-point numbers, not {probs.dtype}")
    if probs.dim() == 1 or (probs.dim() == 2 and probs.shape[1] == 1):
        event = probs.flatten()
        probs, labels = torch.stack([1 - event, event], -1), _event_labels(labels, len(event))
    if probs.shape[:-1] != labels.shape:
        raise ValueError(
            f"probabilities of shape {tuple(probs.shape)} do not fit labels of shape {tuple(labels.shape)}; "
            "expected [B, C] and [B]"
        )
    _check_probs(probs)
    _check_labels(labels, probs.shape[-1])
    return probs.reshape(-1, probs.shape[-1]), labels.reshape(-1).long()


def checked_tensor(value: Any, name: str) -> Tensor:
    """The tensor itself; anything else is an error."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} come as a tensor, not {type(value).__name__}; convert them with torch.as_tensor")
    return value.detach()


def yes_or_no(labels: Tensor) -> Tensor:
    """Labels as 0 and 1, whichever dtype they come in."""
    if labels.dtype != torch.bool and not bool(((labels == 0) | (labels == 1)).all()):
        raise ValueError("labels of a yes-or-no question are 0 and 1, but there are others; compare with one class")
    return labels.long()


def positive_int(value: Any, name: str) -> None:
    """Raise unless the argument is a whole number above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a whole number from 1, not {value!r}")


def between(value: Any, name: str, low: float, high: float) -> None:
    """Raise unless the argument is a number strictly between the bounds."""
    if not isinstance(value, int | float) or not low < value < high:
        raise ValueError(f"{name} is a number between {low:g} and {high:g}, not {value!r}")


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise unless the argument is among the choices."""
    if value not in choices:
        raise ValueError(f"{name} is one of {choices}, not {value!r}")


def mean(values: Tensor) -> Tensor:
    """Mean in float64, returned in float32; NaN where there are no values."""
    return values.double().mean().float()


def _event_labels(labels: Tensor, count: int) -> Tensor:
    if labels.shape not in ((count,), (count, 1)):
        raise ValueError(
            f"{count} probabilities of a yes do not fit labels of shape {tuple(labels.shape)}; expected [{count}]"
        )
    return yes_or_no(labels.flatten())


def _check_probs(probs: Tensor) -> None:
    if not probs.numel():
        return
    # Half precision rounds each probability, so that sums stray further.
    slack = max(1e-3, 2 * torch.finfo(probs.dtype).eps)
    totals = probs.double().sum(-1)
    # One transfer from the device for all four bounds.
    low, high, least, most = torch.stack([*probs.double().aminmax(), *totals.aminmax()]).tolist()
    if low != low:
        raise ValueError("the probabilities contain NaN; look for the examples whose outputs are not finite")
    if low < -slack or high > 1 + slack:
        raise ValueError(
            f"probabilities are from 0 to 1, but these reach from {low:g} to {high:g}; apply softmax to logits first"
        )
    if least < 1 - slack or most > 1 + slack:
        raise ValueError(
            f"the probabilities of all classes sum to 1, but these sum to between {least:g} and {most:g}; "
            "normalise them over the last axis"
        )


def _check_labels(labels: Tensor, classes: int) -> None:
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"class labels are whole numbers, not {labels.dtype}")
    if not labels.numel():
        return
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1} for {classes} classes, but they reach from {low} to {high}; "
            "renumber them"
        )
