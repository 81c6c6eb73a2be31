"""What a run has seen: how its data were read, and which rows it was trained or validated on."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data import Dataset, Part
from leanbayes.data._dataset import Origin
from leanbayes.data._fingerprint import of_dataset, of_rows
from leanbayes.training.checkpoints import ROWS

SEEN, GROUPS = "seen.npy", "groups.npy"


@dataclass(frozen=True)
class Seen:
    """Enough to read the same parts again, and to know single rows wherever they stand.

    Attributes:
        rows: Fingerprint of all parts.
        origin: How they were read, None where `load` did not read them.
        hashes: One number for each row of training and validation, ascending; None where they are not known.
        groups: One number for each group of these rows, ascending; None where rows have none, or they are not known.
    """

    rows: str
    origin: Origin | None = None
    hashes: NDArray[np.uint64] | None = None
    groups: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Seen:
        """What a run on a data set sees; reads every example of training and validation once."""
        hashes = np.unique(np.concatenate([of_rows(dataset.train), of_rows(dataset.valid)]))
        groups = [part.groups.numpy() for part in (dataset.train, dataset.valid) if part.groups is not None]
        return cls(fingerprint(dataset), dataset.origin, hashes, np.unique(np.concatenate(groups)) if groups else None)

    def knows(self, part: Part) -> NDArray[np.bool_] | None:
        """Which rows equal one of training or validation; None where that is not known."""
        return None if self.hashes is None else np.isin(of_rows(part), self.hashes)

    def knows_group(self, part: Part) -> NDArray[np.bool_] | None:
        """Which rows are of a group that training or validation has; None where that is not known."""
        if self.groups is None or part.groups is None:
            return None
        return np.isin(part.groups.numpy(), self.groups)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file: everything but the hashes."""
        return {ROWS: self.rows, "origin": None if self.origin is None else asdict(self.origin)}

    def files(self) -> dict[str, bytes]:
        """The numbers as NPY files, by name."""
        numbers = {SEEN: self.hashes, GROUPS: self.groups}
        return {name: _to_npy(values) for name, values in numbers.items() if values is not None}


def read_seen(about: dict[str, Any], folder: Path) -> Seen:
    """What `Seen.to_json` described, with the numbers of the files that are there.

    Raises:
        ValueError: If one of them is damaged.
    """
    path = folder / SEEN
    try:
        origin = None if about["origin"] is None else Origin(**about["origin"])
        hashes = _read_npy(path, np.uint64)
        path = folder / GROUPS
        return Seen(about[ROWS], origin, hashes, _read_npy(path, np.int64))
    except (KeyError, TypeError, ValueError, EOFError, OSError):
        raise ValueError(
            f"{path} or its record in the model is damaged; train the model again, or remove the file and continue"
        ) from None


def _to_npy(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _read_npy(path: Path, kind: Any) -> NDArray[Any] | None:
    if not path.exists():
        return None
    values = np.load(path)
    if values.dtype != kind or values.ndim != 1:
        raise ValueError
    return values


def fingerprint(dataset: Dataset) -> str:
    """Of all rows that are in memory, and of some where they are not."""
    return of_dataset(dataset, complete=True)


def identity(dataset: Dataset) -> dict[str, Any]:
    """What tells the rows of a run from others, as `fit` takes it: plain values by name, the fingerprint last."""
    origin = dataset.origin
    how = {} if origin is None else {**origin.options, "limit": origin.limit}
    weight = "balanced" if dataset.class_weights else None
    return {"data": dataset.name, **how, "class_weight": weight, ROWS: fingerprint(dataset)}
