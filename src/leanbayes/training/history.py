"""What a training went through, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

# Of values with these endings, more is better.
_MORE_IS_BETTER = ("accuracy", "auroc", "log_prob")


@dataclass
class History:
    """What `fit` returns.

    Attributes:
        records: One mapping per epoch: ``epoch`` (from 1), ``step`` (optimiser steps so far), ``loss``, ``nll``, ``kl``
            (means over the epoch's examples), ``lr``, ``kl_weight``, ``seconds``, and, if there is validation data,
            ``valid_nll`` and, for classes, ``valid_accuracy``.
        stopped: Why training ended before its last epoch, None if it did not.
        monitor: The value that says which epoch is best.
        min_delta: What counts as better.
        how: How steps ran in the end, such as "float32 with TF32 products, recorded".
        refit: What happened when training began again on all rows, None if it did not.

    Example:
        >>> history = History([{"epoch": 1, "valid_nll": 0.7}, {"epoch": 2, "valid_nll": 0.9}])
        >>> history["valid_nll"], history.best["epoch"], history.waited
        ([0.7, 0.9], 1, 1)
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    monitor: str = "valid_nll"
    min_delta: float = 0.0
    how: str = ""
    refit: History | None = None

    def __getitem__(self, name: str) -> list[Any]:
        """The values of one name, of the epochs that have it."""
        values = [record[name] for record in self.records if name in record]
        if self.records and not values:
            raise KeyError(f"no epoch has {name!r}; they have {', '.join(self.records[-1])}")
        return values

    def __len__(self) -> int:
        return len(self.records)

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's record."""
        return self.records[-1] if self.records else {}

    @property
    def best(self) -> dict[str, Any]:
        """The record of the epoch with the best value of `monitor`; empty if none has one."""
        return self._best_and_waited()[0]

    @property
    def waited(self) -> int:
        """Evaluations since the best one."""
        return self._best_and_waited()[1]

    @property
    def seconds(self) -> float:
        """Seconds that the epochs took."""
        return sum(record.get("seconds", 0.0) for record in self.records)

    def _best_and_waited(self) -> tuple[dict[str, Any], int]:
        sign = -1.0 if self.monitor.endswith(_MORE_IS_BETTER) else 1.0
        best: dict[str, Any] = {}
        lowest, waited = math.inf, 0
        for record in self.records:
            value = record.get(self.monitor)
            if value is None:
                continue
            # What is no number compares with nothing; it counts as worse than any.
            cost = math.inf if math.isnan(value) else sign * value
            if not best or cost < lowest - self.min_delta:
                best, lowest, waited = record, cost, 0
            else:
                waited += 1
        return best, waited
