"""What callbacks of a training are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from leanbayes.objectives.elbo import ELBO
from leanbayes.training.history import History


@dataclass(frozen=True)
class EpochEnd:
    """What a callback is given after each epoch.

    Attributes:
        model: The model in training.
        record: The epoch's record, the last of the history.
        history: All records so far.
        elbo: The objective in training, with the KL weight of the step.
    """

    model: nn.Module
    record: dict[str, Any]
    history: History
    elbo: ELBO | None = None


Callback = Callable[[EpochEnd], Any]
