"""Training of the networks of other libraries: AdamW, stopped on rows that were held out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

_HELD_OUT = 0.15
_BATCH = 256
_PATIENCE = 16
_EPOCHS = 500


def scaler(values: Any) -> Any:
    """A standard scaler of columns ``[N, features]``."""
    return StandardScaler().fit(values)


class Parts(NamedTuple):
    """Rows to train on, and rows to stop on."""

    x: Tensor
    y: Tensor
    held_out_x: Tensor
    held_out_y: Tensor


def split(x: Tensor, y: Tensor, seed: int) -> Parts:
    """Hold out a part of the rows."""
    kept, out = train_test_split(range(len(x)), test_size=_HELD_OUT, random_state=seed)
    return Parts(x[kept], y[kept], x[out], y[out])


def train(
    model: nn.Module, parts: Parts, loss: Callable[[Tensor, Tensor], Tensor], lr: float, decay: float, seed: int
) -> nn.Module:
    """Minimise a loss of outputs and targets until it no longer falls on the rows held out; keeps the best weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)
    generator = torch.Generator().manual_seed(seed)
    best, best_state, waited = float("inf"), copy.deepcopy(model.state_dict()), 0
    for _ in range(_EPOCHS):
        model.train()
        for batch in torch.randperm(len(parts.x), generator=generator).to(parts.x.device).split(_BATCH):
            optimizer.zero_grad()
            loss(model(parts.x[batch]), parts.y[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found = loss(model(parts.held_out_x), parts.held_out_y).item()
        waited += 1
        if found < best:
            best, best_state, waited = found, copy.deepcopy(model.state_dict()), 0
        elif waited > _PATIENCE:
            break
    model.load_state_dict(best_state)
    return model.eval()
