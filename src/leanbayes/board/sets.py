"""The tables of the board."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from leanbayes.board.contender import Array

REGRESSION = {
    "boston-housing": "Boston",
    "concrete": "Concrete",
    "energy": "Energy",
    "kin8nm": "Kin8nm",
    "naval-propulsion-plant": "Naval",
    "power-plant": "Power",
    "protein-tertiary-structure": "Protein",
    "wine-quality-red": "WineRed",
    "yacht": "Yacht",
}
CLASSES = {"digits": "digits", "breast-cancer": "breast cancer", "wine": "wine"}
_TEST_SHARE = 0.2


class Split(NamedTuple):
    """Training and test rows, as they come: nothing is scaled."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def regression_splits(load: Callable[..., Any], name: str, count: int) -> Iterator[Split]:
    """The first published splits of a UCI table.

    Args:
        load: Gives a data set for a name, ``split``, ``valid`` and ``normalise``.
        name: Of the table.
        count: Of splits; Protein has five.
    """
    for split in range(min(count, 5 if name.startswith("protein") else 20)):
        data = load(f"uci-{name}", split=split, valid=0, normalise="none")
        parts = [part.double().numpy() for part in (data.train.x, data.train.y, data.test.x, data.test.y)]
        yield Split(*parts)


def class_splits(name: str, count: int) -> Iterator[Split]:
    """Random splits of a table that comes with scikit-learn, a fifth of the rows of each class for the test."""
    from sklearn import datasets
    from sklearn.model_selection import StratifiedShuffleSplit

    read: Any = getattr(datasets, f"load_{name.replace('-', '_')}")
    x, y = read(return_X_y=True)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.int64)
    for train, test in StratifiedShuffleSplit(count, test_size=_TEST_SHARE, random_state=0).split(x, y):
        yield Split(x[train], y[train], x[test], y[test])
