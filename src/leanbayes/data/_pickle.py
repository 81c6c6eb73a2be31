"""Pickled public files, read without running anything they name.

A pickle is a program that may call any function. Here it can only describe arrays, strings, whole numbers, lists and
dictionaries: whatever else it names is refused, and the few names that numpy writes lead to plain records of this
module, from which the arrays are built when the file has been read.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_SIMPLE_TYPE = re.compile(r"[<>|=]?[biuf][1248]")
_OBJECT_TYPE = re.compile(r"\|?O8?")
_RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
_FROM_BUFFER = {("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")}
# How Python 3 writes an empty bytes object for Python 2.
_NO_BYTES = {("__builtin__", "bytes"), ("builtins", "bytes")}
_PLAIN = (int, str, bytes)


class Refused(ValueError):
    """A pickle that holds something other than arrays, strings, whole numbers, lists and dictionaries."""


def load_pickle(stream: IO[bytes], name: str) -> Any:
    """Reads one pickled object of arrays, strings, whole numbers, lists and dictionaries.

    Strings of Python 2 become bytes.

    Args:
        stream: The open file.
        name: What to call it in messages.

    Returns:
        The object.

    Raises:
        ValueError: If the file is no complete pickle, or names anything else.
    """
    try:
        return _plain(_Unpickler(stream, encoding="bytes").load())
    except Refused as error:
        raise Refused(
            f"{name} is refused: {error}; such a file can run any code, so get it from its public source"
        ) from None
    except (MemoryError, KeyboardInterrupt):
        raise
    # What a damaged pickle raises depends on the byte that is wrong.
    except Exception as error:
        raise ValueError(
            f"{name} is not a complete pickled file ({type(error).__name__}: {error}); get it again"
        ) from None


def load_pickle_bytes(data: bytes, name: str) -> Any:
    """As :func:`load_pickle`, for the bytes of a file."""
    return load_pickle(io.BytesIO(data), name)


class _Type:
    """The record of a numpy dtype."""

    __slots__ = ("order", "spec")

    def __init__(self, spec: Any) -> None:
        self.spec = spec.decode("ascii") if isinstance(spec, bytes) else spec
        self.order = ""
        if not isinstance(self.spec, str) or not (
            _SIMPLE_TYPE.fullmatch(self.spec) or _OBJECT_TYPE.fullmatch(self.spec)
        ):
            raise Refused(f"it holds an array of type {self.spec!r}")

    def __setstate__(self, state: Any) -> None:
        # (version, byte order, sub-array, names, fields, size, alignment, flags)
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(entry is not None for entry in state[2:5]):
            raise Refused("it holds an array of a compound type")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.spec.lstrip("<>|=") if self.order in ("<", ">") else self.spec)


class _Array:
    """The record of a numpy array."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        # (version, shape, type, Fortran order, content)
        self.state = tuple(state)[-4:]

    def array(self) -> NDArray[Any]:
        if self.state is None or len(self.state) != 4 or not isinstance(self.state[1], _Type):
            raise Refused("it holds an array without its content")
        shape, kind, fortran, content = self.state
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise Refused("it holds an array without a shape")
        dtype, order = kind.dtype(), "F" if fortran else "C"
        if dtype.hasobject:
            return _object_array(content, shape)
        if not isinstance(content, bytes | bytearray) or len(content) != math.prod(shape) * dtype.itemsize:
            raise Refused("it holds an array whose content does not have the size of its shape")
        return np.frombuffer(content, dtype).reshape(shape, order=order).copy()


def _object_array(content: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if not isinstance(content, list) or len(content) != math.prod(shape):
        raise Refused("it holds an array of objects without them")
    array = np.empty(len(content), object)
    for position, entry in enumerate(content):
        array[position] = _plain(entry)
    return array.reshape(shape)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for each name that numpy's pickles use; made anew each time, because a pickle can change it."""
        if (module, name) in _RECONSTRUCT:
            return lambda subtype, shape, code: _Array()
        if (module, name) in _FROM_BUFFER:
            return _from_buffer
        if (module, name) == ("numpy", "ndarray"):
            return "ndarray"
        if (module, name) == ("numpy", "dtype"):
            return lambda spec, align=False, copy=True: _Type(spec)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) in _NO_BYTES:
            return lambda: b""
        raise Refused(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to objects outside")


class _FromBuffer:
    __slots__ = ()

    def __call__(self, content: Any, kind: Any, shape: Any, order: Any) -> _Array:
        array = _Array()
        array.__setstate__((shape, kind, order == "F", bytes(content) if isinstance(content, bytearray) else content))
        return array


class _Encode:
    __slots__ = ()

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        # How Python 3 writes bytes for Python 2 to read.
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise Refused("it encodes something that is not text")
        return text.encode("latin1")


_from_buffer, _encode = _FromBuffer(), _Encode()


def _plain(value: Any) -> Any:
    """The value with arrays in the place of their records; anything but the plain types is refused."""
    if isinstance(value, _Array):
        return value.array()
    if isinstance(value, list):
        # The usual list has thousands of whole numbers.
        if set(map(type, value)) <= set(_PLAIN):
            return value
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {_key(key): _plain(entry) for key, entry in value.items()}
    if type(value) in _PLAIN:
        return value
    raise Refused(f"it holds a {type(value).__name__.strip('_').lower()}")


def _key(key: Any) -> Any:
    if type(key) not in _PLAIN:
        raise Refused(f"it has a {type(key).__name__} as a key")
    return key
