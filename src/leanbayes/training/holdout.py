"""Which training rows are held out to stop on, where no validation data is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes._inputs import rows as count_rows
from leanbayes._rows import map_rows
from leanbayes.data._split import STOP_STREAM, held_out_count, hold_out


def check_hold_out(owner: str, value: Any) -> None:
    """Raise unless a value is "auto", a share from 0 to below 1, or a number of rows."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    share = number and (0 <= value < 1 or (value > 1 and value % 1 == 0) or (value == 1 and isinstance(value, int)))
    if not share and value != "auto":
        raise ValueError(
            f"{owner} takes 'auto', a share of the rows from 0 to below 1 or a number of rows, not {value!r}"
        )


def divide(
    rows: int,
    share: float | str,
    seed: int,
    labels: NDArray[np.integer] | None = None,
    groups: NDArray[np.integer] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows to train on and those held out, ascending; the same for the same arguments.

    Args:
        rows: Number of rows.
        share: As `check_hold_out` takes it.
        seed: Of the choice.
        labels: Classes ``[rows]``, each of which is held out in proportion, and none altogether.
        groups: A number for the group of each row ``[rows]``; none of them is divided.
    """
    count = held_out_count(rows) if isinstance(share, str) else share
    return hold_out(rows, count, seed % 2**32, stream=STOP_STREAM, labels=labels, groups=groups)


Examples = tuple[Any, Tensor, Tensor | None]


def divide_examples(examples: Examples, share: float | str, seed: int) -> tuple[Examples, Examples | None]:
    """Inputs, targets and weights to train on, and those held out, None for none; classes in proportion."""
    _, y, _ = examples
    labels = y.numpy(force=True) if y.dim() == 1 and y.dtype in (torch.int32, torch.int64) else None
    kept, held = divide(count_rows(examples[0]), share, seed, labels)
    return take(examples, kept), take(examples, held) if len(held) else None


def take(examples: Examples, index: NDArray[np.int64]) -> Examples:
    """Some rows of examples."""
    x, y, weights = examples
    chosen = torch.from_numpy(index).to(y.device)
    return (
        map_rows(x, lambda t: t[chosen.to(t.device)]),
        y[chosen],
        None if weights is None else weights[chosen.to(weights.device)],
    )


def join(first: Examples, second: Examples) -> Examples:
    """The rows of both."""
    (x, y, weights), (other_x, other_y, other_weights) = first, second
    if (weights is None) != (other_weights is None):
        weights = torch.ones(len(y)) if weights is None else weights
        other_weights = torch.ones(len(other_y)) if other_weights is None else other_weights
    joined = None if weights is None or other_weights is None else torch.cat([weights, other_weights])
    return _joined(x, other_x), torch.cat([y, other_y]), joined


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    if isinstance(first, dict):
        return {key: _joined(value, second[key]) for key, value in first.items()}
    return tuple(_joined(a, b) for a, b in zip(first, second, strict=True))
