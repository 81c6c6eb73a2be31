"""The tables of the board."""

from __future__ import annotations

from collections.abc import Callable
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
# Splits of the tables that have fewer than 20.
_PUBLISHED = {"protein-tertiary-structure": 5}


class Split(NamedTuple):
    """Training and test rows, as they come: nothing is scaled."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def split_count(name: str, most: int) -> int:
    """How many splits of a table to take: so many, or as many as are published.

    Example:
        >>> [split_count(name, 20) for name in ("yacht", "protein-tertiary-structure")]
        [20, 5]
    """
    return min(most, _PUBLISHED.get(name, 20))


def regression_split(load: Callable[..., Any], name: str, number: int) -> Split:
    """A published split of a UCI table.

    Args:
        load: Gives a data set for a name, ``split``, ``valid`` and ``normalise``.
        name: Of the table.
        number: Of the split, from 0.
    """
    data = load(f"uci-{name}", split=number, valid=0, normalise="none")
    return Split(*(part.double().numpy() for part in (data.train.x, data.train.y, data.test.x, data.test.y)))


def class_split(name: str, number: int) -> Split:
    """A random split of a table that comes with scikit-learn, a fifth of the rows of each class for the test."""
    from sklearn import datasets
    from sklearn.model_selection import StratifiedShuffleSplit

    read: Any = getattr(datasets, f"load_{name.replace('-', '_')}")
    x, y = read(return_X_y=True)
    x, y = np.asarray(x, np.float64), np.asarray(y, np.int64)
    # Drawn one after the other, so that a split does not depend on how many there are.
    *_, (train, test) = StratifiedShuffleSplit(number + 1, test_size=_TEST_SHARE, random_state=0).split(x, y)
    return Split(x[train], y[train], x[test], y[test])
