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


@dataclass(frozen=True)
class Seen:
    """Enough to read the same parts again, and to know single rows wherever they stand.

    Attributes:
        rows: Fingerprint of all parts.
        origin: How they were read, None where `load` did not read them.
        hashes: One number for each row of training and validation, ascending; None where they are not known.
    """

    rows: str
    origin: Origin | None = None
    hashes: NDArray[np.uint64] | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> Seen:
        """What a run on a data set sees; reads every example of training and validation once."""
        hashes = np.unique(np.concatenate([of_rows(dataset.train), of_rows(dataset.valid)]))
        return cls(fingerprint(dataset), dataset.origin, hashes)

    def knows(self, part: Part) -> NDArray[np.bool_] | None:
        """Which rows equal one of training or validation; None where that is not known."""
        return None if self.hashes is None else np.isin(of_rows(part), self.hashes)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file: everything but the hashes."""
        return {ROWS: self.rows, "origin": None if self.origin is None else asdict(self.origin)}

    def to_bytes(self) -> bytes:
        """The hashes as an NPY file."""
        assert self.hashes is not None
        file = io.BytesIO()
        np.save(file, self.hashes)
        return file.getvalue()


def read_seen(about: dict[str, Any], path: Path) -> Seen:
    """What `Seen.to_json` described, with the hashes of a file where that is there.

    Raises:
        ValueError: If one of them is damaged.
    """
    try:
        origin = None if about["origin"] is None else Origin(**about["origin"])
        hashes = np.load(path) if path.exists() else None
        if hashes is not None and (hashes.dtype != np.uint64 or hashes.ndim != 1):
            raise ValueError
        return Seen(about[ROWS], origin, hashes)
    except (KeyError, TypeError, ValueError, EOFError, OSError):
        raise ValueError(
            f"{path} or its record in the model is damaged; train the model again, or remove the file and continue"
        ) from None


def fingerprint(dataset: Dataset) -> str:
    """Of all rows that are in memory, and of some where they are not."""
    return of_dataset(dataset, complete=True)


def identity(dataset: Dataset) -> dict[str, Any]:
    """What tells the rows of a run from others, as `fit` takes it: plain values by name, the fingerprint last."""
    origin = dataset.origin
    how = {} if origin is None else {**origin.options, "limit": origin.limit}
    weight = "balanced" if dataset.class_weights else None
    return {"data": dataset.name, **how, "class_weight": weight, ROWS: fingerprint(dataset)}
