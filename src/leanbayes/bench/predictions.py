"""Predictions of many samples, and the plain pass over as many rows that they are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes._sampling import fold
from leanbayes.bench.capturing import captured_model
from leanbayes.bench.contenders import Contender
from leanbayes.bench.setup import Setup
from leanbayes.bench.steps import CAPTURED

SAMPLES = (20, 100)


def plain_pass(setup: Setup, mode: str, samples: int) -> Callable[[], Tensor]:
    """One forward pass of the plain network over samples times rows; gives outputs ``[samples * rows, classes]``."""
    model = setup.place(setup.net()).eval()
    x = fold(setup.examples(setup.rows)[0], samples)
    forward = captured_model(model) if mode == CAPTURED else model

    def run() -> Tensor:
        with torch.no_grad(), setup.autocast():
            return forward(x)

    return run


def contender_model(setup: Setup, contender: Contender, mode: str) -> nn.Module:
    """A contender that is ready to predict; other numbers of samples need no other."""
    model = setup.place(contender.convert(setup.net())).eval()
    return captured_model(model) if mode == CAPTURED else model


def prediction(setup: Setup, model: nn.Module, samples: int) -> Callable[[], Tensor]:
    """`predict` as users call it; gives outputs ``[S, rows, classes]``, S less where members are points."""
    x, _ = setup.examples(setup.rows)

    def run() -> Tensor:
        with setup.autocast():
            return predict(model, x, samples).outputs

    return run
