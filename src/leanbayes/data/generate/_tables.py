"""Synthetic tables, the layout of the UCI splits, and CSV, Parquet and NPZ files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._checks import check_choice
from leanbayes.data._extras import need
from leanbayes.data._files import PathLike
from leanbayes.data.generate._images import images
from leanbayes.data.uci import FOLDER_NAMES

_COLOURS = np.array(["blue", "green", "red"])


def regression(
    rows: int, features: int = 6, *, seed: int = 0, noise: float = 0.1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs of various scales and a smooth function of them with Gaussian noise.

    Args:
        rows: Number of examples.
        features: Number of inputs.
        seed: Of inputs and noise; the function depends on the number of inputs alone.
        noise: Standard deviation of the noise, where the function has about 1.

    Returns:
        Inputs ``[rows, features]`` and targets ``[rows]``.
    """
    weights = np.random.RandomState(features).standard_normal((2, features)) / np.sqrt(features)
    random = np.random.RandomState(seed)
    z = random.standard_normal((rows, features))
    y = np.sin(2 * z @ weights[0]) + z @ weights[1] + noise * random.standard_normal(rows)
    return 5 + z * 10.0 ** (np.arange(features) % 4 - 1), 20 + 3 * y


def write_uci(
    root: PathLike, name: str = "yacht", *, rows: int = 120, features: int = 6, splits: int = 3, seed: int = 0
) -> Path:
    """A synthetic regression in the layout of the UCI splits: a tenth of the rows is the test part of each split."""
    folder = Path(root) / "UCI_Datasets" / FOLDER_NAMES.get(name, name) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    x, y = regression(rows, features, seed=seed)
    np.savetxt(folder / "data.txt", np.column_stack([x, y]), fmt="%.17g")
    np.savetxt(folder / "index_features.txt", np.arange(features), fmt="%d")
    np.savetxt(folder / "index_target.txt", [features], fmt="%d")
    np.savetxt(folder / "n_splits.txt", [splits], fmt="%d")
    for split in range(splits):
        order = np.random.RandomState([seed, split]).permutation(rows)
        for part, index in zip(("test", "train"), np.split(order, [max(1, rows // 10)])):
            np.savetxt(folder / f"index_{part}_{split}.txt", index, fmt="%d")
    return folder


def write_table(
    path: PathLike,
    *,
    rows: int = 200,
    features: int = 4,
    task: str = "regression",
    colour: bool = False,
    missing: int = 0,
    seed: int = 0,
) -> Path:
    """A CSV or Parquet file (by the name's ending) with columns ``x1`` to ``x<features>`` and the target ``y`` last.

    Args:
        path: The file.
        rows: Number of rows.
        features: Number of columns with numbers.
        task: "regression", or "classification" with the classes "high" and "low".
        colour: Whether there is a column of text that the target depends on.
        missing: How many cells of ``x1`` are empty.
        seed: Of everything random.

    Returns:
        The path.
    """
    check_choice("task", task, ("regression", "classification"))
    x, y = regression(rows, features, seed=seed)
    random = np.random.RandomState([seed, 1])
    columns: dict[str, list[Any]] = {f"x{number + 1}": x[:, number].tolist() for number in range(features)}
    for row in random.permutation(rows)[:missing]:
        columns["x1"][row] = None
    if colour:
        chosen = random.randint(len(_COLOURS), size=rows)
        y = y + 3 * chosen
        columns["colour"] = _COLOURS[chosen].tolist()
    columns["y"] = y.tolist() if task == "regression" else np.where(y > np.median(y), "high", "low").tolist()
    path = Path(path)
    if path.suffix == ".parquet":
        need("pyarrow.parquet", "Parquet files").write_table(need("pyarrow", "tables").table(columns), path)
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values()))
    return path


def write_npz(path: PathLike, *, rows: int = 120, kind: str = "image", seed: int = 0) -> Path:
    """An NPZ file with arrays ``x`` and ``y``: grey images of 8 x 8 in 3 classes, or a "table" with a regression."""
    check_choice("kind", kind, ("image", "table"))
    x, y = images(rows, 3, (1, 8, 8), seed=seed) if kind == "image" else regression(rows, seed=seed)
    np.savez(Path(path), x=x, y=y)
    return Path(path)
