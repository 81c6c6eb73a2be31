"""Means of the loss and its parts, without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leanbayes.objectives.elbo import Terms

NAMES = ("loss", "nll", "kl")
# Scalars that are kept on the device at most before they are fetched.
_MOST_PENDING = 1000


class Meter:
    """Sums over examples of an epoch, and since the last line of the log.

    Values stay on the device until `fetch`; they are then added on the host in double precision and in their order,
    so that the sums do not depend on when they were fetched.
    """

    def __init__(self) -> None:
        self._pending: list[Tensor] = []
        self._rows: list[int] = []
        # loss, nll and kl times examples, and the examples
        self.epoch = [0.0] * 4
        self.window = [0.0] * 4

    def add(self, terms: Terms, rows: int) -> None:
        """Note the result of one forward pass."""
        self._pending += (terms.loss.detach(), terms.nll.detach(), terms.kl.detach())
        self._rows.append(rows)
        if len(self._rows) >= _MOST_PENDING:
            self.fetch()

    def fetch(self) -> None:
        """Wait for the device and add what is pending."""
        if not self._rows:
            return
        device = self._pending[0].device
        values = torch.stack([value.to(device) for value in self._pending]).tolist()
        for index, rows in enumerate(self._rows):
            loss, nll, kl = values[3 * index : 3 * index + 3]
            for sums in (self.epoch, self.window):
                for position, value in enumerate((loss * rows, nll * rows, kl * rows, rows)):
                    sums[position] += value
        self._pending, self._rows = [], []

    def close_window(self, reduce: Callable[[list[float]], list[float]]) -> dict[str, float]:
        """Means since the last call, over all processes."""
        self.fetch()
        sums, self.window = self.window, [0.0] * 4
        return _means(reduce(sums))

    def close_epoch(self, reduce: Callable[[list[float]], list[float]]) -> dict[str, float]:
        """Means of the epoch, over all processes."""
        self.fetch()
        sums, self.epoch, self.window = self.epoch, [0.0] * 4, [0.0] * 4
        return _means(reduce(sums))

    def state_dict(self) -> dict[str, Any]:
        """The sums, as plain values."""
        self.fetch()
        return {"epoch": list(self.epoch), "window": list(self.window)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.epoch, self.window = list(state["epoch"]), list(state["window"])


def _means(sums: list[float]) -> dict[str, float]:
    count = sums[3]
    return {name: value / count if count else math.nan for name, value in zip(NAMES, sums)}
