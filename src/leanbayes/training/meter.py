"""Means of the loss and its parts, without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from leanbayes.objectives.elbo import Terms

NAMES = ("loss", "nll", "kl")
# Passes whose values are kept on the device at most before they are fetched.
_MOST_PENDING = 256


class Meter:
    """Sums over examples of an epoch, and since the last line of the log.

    Values stay on the device until `fetch`; they are then added on the host in double precision and in their order,
    so that the sums do not depend on when they were fetched.
    """

    def __init__(self, device: torch.device) -> None:
        # One tensor for all: single values that live on between the activations of a pass would fragment the memory.
        self._pending = torch.zeros(_MOST_PENDING, len(NAMES), dtype=torch.float64, device=device)
        self._slots = self._pending.unbind()
        self._rows: list[int] = []
        # loss, nll and kl times examples, and the examples
        self.epoch = [0.0] * 4
        self.window = [0.0] * 4

    def add(self, terms: Terms, rows: int) -> None:
        """Note the result of one forward pass."""
        with torch.no_grad():
            torch.stack((terms.loss, terms.nll, terms.kl), out=self._slots[len(self._rows)])
        self._rows.append(rows)
        if len(self._rows) == _MOST_PENDING:
            self.fetch()

    def fetch(self) -> None:
        """Wait for the device and add what is pending."""
        if not self._rows:
            return
        for values, rows in zip(self._pending[: len(self._rows)].tolist(), self._rows):
            for sums in (self.epoch, self.window):
                for position, value in enumerate((*values, 1.0)):
                    sums[position] += value * rows
        self._rows = []

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
