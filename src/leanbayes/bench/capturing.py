"""The one place that knows how a step or a model is captured: compiled and, on a GPU, recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.bench.setup import Setup
from leanbayes.objectives import ELBO

_PRECISIONS = {"32": "32", "bf16": "bf16-mixed"}


def _capture() -> Callable[..., Any]:
    import leanbayes

    # Each model starts from an empty cache of compiled code: a compiled call looks through the entries of earlier ones,
    # and beyond a few of them it is no longer compiled.
    torch._dynamo.reset()
    return leanbayes.capture


def captured_step(setup: Setup, elbo: ELBO, optimizer: torch.optim.Optimizer) -> Any:
    """A function of inputs and targets that trains by one step; its ``how`` says in words how it runs."""
    return _capture()(elbo, optimizer, precision=_PRECISIONS[setup.precision])


def captured_model(model: nn.Module) -> nn.Module:
    """The model for predictions, compiled and recorded."""
    return _capture()(model.eval())


def captured_pass(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """One forward pass of a plain model, run as the predictions of captured models are."""
    return captured_model(model)
