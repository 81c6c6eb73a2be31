"""The file that `save` writes: safetensors with a description of the model in its metadata."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from leanbayes._registry import from_json
from leanbayes.posteriors._method import Method

_FORMAT = 1
_METADATA_KEY = "leanbayes"

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class SavedPart:
    """A module that one call had converted.

    Attributes:
        path: Its name in the model.
        ensemble: The `DeepEnsemble`, None for any other method.
        layers: The methods of its layers, by their names in the plain module.
        left: What the call left alone, see `Report`.
        notes: What else there was to know, see `Report`.
    """

    path: str
    ensemble: Method | None
    layers: dict[str, Method]
    left: list[Any]
    notes: list[Any]


@dataclass(frozen=True)
class SavedFile:
    """An open file.

    Attributes:
        path: Its name for messages.
        handle: safetensors' own.
        model: The plain model's type.
        config: What `leanbayes.models.create` noted on the model.
        parts: What was converted, outermost first.
        frozen: Names of the parameters that are not trained.
        stored: The key under which each of the model's keys is stored; tied tensors are stored once.
        left_out: Keys that are not stored because the model has their values.
    """

    path: PathLike
    handle: Any
    model: str
    config: dict[str, Any] | None
    parts: list[SavedPart]
    frozen: frozenset[str]
    stored: dict[str, str]
    left_out: frozenset[str]


def check_target(path: PathLike) -> Path:
    """Where to write, with links followed, or one clear error."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the path of a file in it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist; create it first")
    return target


def write(values: dict[str, Tensor], description: dict[str, Any], target: Path) -> None:
    """Write beside the target and move the file there when it is complete and on the disk."""
    from safetensors.torch import save_file

    text = json.dumps({"version": _FORMAT, "written_by": _own_version(), **description}, default=_as_number)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch(exist_ok=False)
        usual = (target if target.exists() else temporary).stat().st_mode
        # One entry: safetensors writes several in any order, and the same model should give the same bytes.
        save_file(values, temporary, {_METADATA_KEY: text})
        # safetensors makes files that only their owner can read.
        temporary.chmod(usual)
        _flush(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some systems do not open folders
        _flush(target.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _own_version() -> str:
    try:
        return importlib.metadata.version("leanbayes")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _as_number(value: Any) -> Any:
    """Scalars of numpy and torch as plain numbers, for settings that were computed."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} cannot be saved; it is neither a number nor text")


@contextlib.contextmanager
def open_saved(path: PathLike) -> Iterator[SavedFile]:
    """Open a file that `write` wrote; one clear error for any other."""
    from safetensors import SafetensorError, safe_open

    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} is a folder; pass the path of a file in it")
    try:
        opened = safe_open(path, "pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(_why_unreadable(path, error)) from None
    with opened as handle:
        text = (handle.metadata() or {}).get(_METADATA_KEY)
        if text is None:
            raise ValueError(
                f"{path} is a safetensors file, but not one that lb.save wrote; read it with "
                "safetensors.torch.load_file and give the tensors to load_state_dict"
            )
        yield _parse(path, text, handle)


def _why_unreadable(path: PathLike, error: Exception) -> str:
    with open(path, "rb") as file:
        start = file.read(9)
    # A safetensors file starts with the length of its JSON header in eight bytes; in one of 32 files, the first byte of
    # the length is that of a pickle.
    safetensors = len(start) == 9 and start.endswith(b"{")
    if start.startswith((b"PK\x03\x04", b"\x80")) and not safetensors:
        return (
            f"{path} is a pickle, as torch.save writes it, and no safetensors file; read it with "
            "torch.load(weights_only=True) and give its state dict to load_state_dict"
        )
    if len(start) < 9 or safetensors:
        return f"{path} is truncated or damaged and cannot be read ({error})"
    return f"{path} is no safetensors file"


class _TooNew(Exception):
    """What this version does not know."""


def _parse(path: PathLike, text: str, handle: Any) -> SavedFile:
    try:
        about = json.loads(text)
        if about["version"] != _FORMAT:
            raise _TooNew(
                f"its format is {about['version']}, written by leanbayes {about.get('written_by')}, and leanbayes "
                f"{_own_version()} reads format {_FORMAT}"
            )
        methods = [_method(value) for value in about["methods"]]
        return SavedFile(
            path,
            handle,
            about["model"],
            about["config"],
            [_part(part, methods) for part in about["conversions"]],
            frozenset(about["frozen"]),
            {key: key for key in handle.keys()} | about["tied"],
            frozenset(about.get("left_out", [])),
        )
    except _TooNew as error:
        raise ValueError(f"{path} cannot be read by this version: {error}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"the description of the model in {path} is damaged ({error!r})") from None


def _part(part: Any, methods: list[Method]) -> SavedPart:
    ensemble = None if part["ensemble"] is None else methods[part["ensemble"]]
    layers = {name: methods[number] for name, number in part["layers"].items()}
    return SavedPart(part["path"], ensemble, layers, part["left"], part["notes"])


def _method(value: Any) -> Method:
    try:
        method = from_json(value)
    except (ValueError, TypeError) as error:
        raise _TooNew(str(error)) from None
    if not isinstance(method, Method):
        raise _TooNew(f"{value!r} is not a method")
    return method
