"""Fingerprints of data: work that was done on some data is not taken for work on others."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from leanbayes.data import Dataset, Part

# Of the inputs: enough to tell files apart, and quick for any size. Of the targets all count.
_ROWS = 1000


def of_dataset(data: Dataset) -> str:
    """Short text that is the same for the same examples as they were read, wherever and in whatever form they lay."""
    return _digest(data.train, data.valid, data.test)


def of_examples(data: Any) -> str | None:
    """The same for a pair of inputs and targets; None for data of another form, such as a loader."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, Tensor) for each in data):
        return _digest(Part(*data))
    return None


def _digest(*parts: Part) -> str:
    digest = hashlib.sha256()
    for part in parts:
        for values in (part.y, part.spaced(_ROWS).tensor()):
            digest.update(f"{len(part)} {tuple(values.shape)} {values.dtype}".encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
