"""Examples of the test part that training has, too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._dataset import Dataset
from leanbayes.data._fingerprint import of_rows

# The share of test examples that training has, too, from which it is said.
_REPEATED = 0.01


def on_repeats(dataset: Dataset) -> list[str]:
    """A note where test examples are also among those of training, so that a model need not generalise.

    What is not in memory is not looked at, as that takes as long as an epoch.
    """
    if not isinstance(dataset.train.x, Tensor) or not len(dataset.test) or _must_repeat(dataset, dataset.train.x):
        return []
    known = np.concatenate([of_rows(dataset.train), of_rows(dataset.valid)])
    count, total = int(np.isin(of_rows(dataset.test), known).sum()), len(dataset.test)
    if not count or count < _REPEATED * total:
        return []
    what = "row" if dataset.inputs == "table" else "example"
    also = "also occurs" if count == 1 else "also occur"
    return [
        f"{count:,} of the {total:,} test {what}s {also} among the training {what}s, with the same target; if they are "
        "copies, remove them, as they flatter every figure"
    ]


def _must_repeat(dataset: Dataset, x: Tensor) -> bool:
    """Whether a table's columns have so few values that rows are alike without being copies."""
    possible, place = len(torch.unique(dataset.train.y)), 0
    for column in dataset.schema.columns:
        possible *= len(torch.unique(x[:, place : place + column.width], dim=0))
        place += column.width
        if possible > len(x):
            return False
    return place > 0 and dataset.inputs == "table"
