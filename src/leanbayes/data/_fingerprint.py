"""Fingerprints of data: work that was done on some data is not taken for work on others."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leanbayes.data._dataset import Dataset, Part

# Of the inputs: enough to tell files apart, and quick for any size. Of the targets all count.
_ROWS = 1000
# Rows read at a time where each one is hashed: images may be large.
_CHUNK = 256
_HASH_BYTES = 8


def of_dataset(data: Dataset, *, complete: bool = False) -> str:
    """Short text that is the same for the same examples as they were read, wherever and in whatever form they lay.

    Args:
        data: The examples.
        complete: Whether all inputs that are in memory count, and not a thousand of each part alone.
    """
    return _digest(data.train, data.valid, data.test, complete=complete)


def of_examples(data: Any) -> str | None:
    """The same for a pair of inputs and targets; None for data of another form, such as a loader."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, Tensor) for each in data):
        return _digest(Part(*data))
    return None


def of_rows(part: Part) -> NDArray[np.uint64]:
    """One number per example, the same for the same input and target in whatever file and place they stand.

    What rounds to the same float32 is the same, and so are bytes and parts of 255.
    """
    found: list[bytes] = []
    for start in range(0, len(part), _CHUNK):
        x, y = part[torch.arange(start, min(start + _CHUNK, len(part)))]
        rows = np.concatenate([_row_bytes(x), _row_bytes(y)], axis=1)
        found += [hashlib.blake2b(row, digest_size=_HASH_BYTES).digest() for row in rows]
    return np.frombuffer(b"".join(found), "<u8").astype(np.uint64)


def _row_bytes(values: Tensor) -> NDArray[np.uint8]:
    """The bytes of each row, ``[N, bytes]``."""
    values = values.detach().cpu()
    if values.dtype == torch.uint8:
        values = values.to(torch.float32) / 255
    if values.is_floating_point():
        values = values.to(torch.float32) + 0.0  # there are two zeros, and many NaN
        values = values.where(~values.isnan(), torch.nan)
    else:
        values = values.to(torch.int64)
    return values.reshape(len(values), -1).contiguous().numpy().view(np.uint8)


def _digest(*parts: Part, complete: bool = False) -> str:
    digest = hashlib.sha256()
    for part in parts:
        whole = complete and isinstance(part.x, Tensor)
        for values in (part.y, (part if whole else part.spaced(_ROWS)).tensor()):
            digest.update(f"{len(part)} {tuple(values.shape)} {values.dtype}".encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
