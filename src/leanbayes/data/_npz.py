"""Arrays of an NPZ file; objects in them are read as restricted pickles, where they are allowed at all."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._pickle import Refused, load_pickle


def read_npz(path: Path, *, objects: bool = False) -> dict[str, NDArray[Any]]:
    """All arrays of an NPZ file.

    Args:
        path: The file.
        objects: Whether arrays of lists may be read, with the restricted unpickler.

    Returns:
        The arrays by their names.

    Raises:
        ValueError: If the file is damaged or holds objects that are not allowed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name[:-4]: _array(archive.read(name), f"{name[:-4]!r} of {path}", objects) for name in members}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a complete NPZ file ({error})") from None


def _array(data: bytes, name: str, objects: bool) -> NDArray[Any]:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
        if not dtype.hasobject:
            return np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"the array {name} cannot be read: {error}") from None
    if not objects:
        raise Refused(f"the array {name} holds Python objects, which are not read; save it as an array of numbers")
    array = load_pickle(stream, f"the array {name}")
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise ValueError(f"the array {name} does not have the shape {shape} of its header")
    return array
