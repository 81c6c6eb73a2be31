"""The idx format of MNIST: a header of sizes, then the numbers."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._files import read_bytes

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> NDArray[np.generic]:
    """The array of an idx file, plain or ``.gz``.

    Raises:
        ValueError: If the file is not an idx file, or shorter or longer than its header says.
    """
    data = read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path} is not an idx file: its first bytes are {data[:4].hex(' ') or 'missing'}")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    dtype = np.dtype(_TYPES[data[2]])
    start, size = 4 + 4 * data[3], math.prod(shape) * dtype.itemsize
    if len(data) - start != size:
        state = "truncated" if len(data) - start < size else "too long"
        raise ValueError(f"{path} is {state}: its header announces {size} bytes, but {len(data) - start} follow")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def idx_bytes(array: NDArray[np.generic]) -> bytes:
    """An array of bytes in the idx format."""
    if array.dtype != np.uint8:
        raise TypeError(f"only arrays of bytes are written as idx, not {array.dtype}")
    return struct.pack(f">HBB{array.ndim}I", 0, 0x08, array.ndim, *array.shape) + array.tobytes()
