"""The list of data sets, and `load`."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from leanbayes.data._dataset import Dataset, Origin
from leanbayes.data._files import PathLike, data_root
from leanbayes.data._repeats import on_repeats

Reader = Callable[..., Dataset]
_Reader = TypeVar("_Reader", bound=Reader)

_NAMED: dict[str, Reader] = {}
_FILES: dict[str, Reader] = {}
_FOLDERS: list[tuple[Callable[[Path], bool], Reader]] = []
_FAMILIES: dict[str, Reader] = {}
_SHEETS, _ARRAYS = (".xlsx", ".xls", ".ods"), (".npy", ".pt", ".pth", ".pkl", ".mat", ".h5", ".hdf5")
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst")
# Options of readers that decide how examples are read, not which.
_ONLY_HOW = ("download", "lazy", "workers")


def register(name: str) -> Callable[[_Reader], _Reader]:
    """Add a reader ``(root, **options)`` under a name, which must not be taken."""
    return _adder(_NAMED, name)


def register_family(prefix: str) -> Callable[[_Reader], _Reader]:
    """Add a reader ``(root, name, **options)`` for all names that start with `prefix`."""
    return _adder(_FAMILIES, prefix)


def register_file(*endings: str) -> Callable[[_Reader], _Reader]:
    """Add a reader ``(path, **options)`` for files whose names have this ending."""

    def add(reader: _Reader) -> _Reader:
        for ending in endings:
            _adder(_FILES, ending)(reader)
        return reader

    return add


def register_folder(accepts: Callable[[Path], bool]) -> Callable[[_Reader], _Reader]:
    """Add a reader ``(path, **options)`` for the folders that `accepts` says yes to; readers are asked in order."""

    def add(reader: _Reader) -> _Reader:
        _FOLDERS.append((accepts, reader))
        return reader

    return add


def names() -> tuple[str, ...]:
    """The names that :func:`load` knows, in alphabetical order; ``uci-*`` stands for all names with that start."""
    return tuple(sorted([*_NAMED, *(f"{prefix}*" for prefix in _FAMILIES)]))


def named(data: PathLike) -> str | None:
    """The name by which :func:`load` knows a data set, None for what is a file or folder to it.

    Example:
        >>> named("Fashion_MNIST"), named("uci-yacht"), named("table.csv")
        ('fashion-mnist', 'uci-yacht', None)
    """
    key = os.fspath(data).lower().replace("_", "-")
    return key if key in _NAMED or key.startswith(tuple(_FAMILIES)) else None


def load(data: PathLike, root: PathLike | None = None, **options: Any) -> Dataset:
    """Reads a data set by its name, or your own file or folder.

    Nothing is downloaded unless ``download=True`` is passed (MNIST, Fashion-MNIST, CIFAR and IMDB have a source).

    Args:
        data: One of :func:`names`; or the path of a CSV, TSV, Parquet or NPZ file, of a tree of image folders, or of
            tables in MIMIC-III's layout.
        root: Folder of the named sets; None takes the environment variable LEANBAYES_DATA, or ``~/.cache/leanbayes``.
        **options: Options of the reader. All take ``valid`` (share or number of training examples for validation, 0.1),
            ``seed`` (of that choice, 0) and ``normalise`` ("standard").

    Returns:
        The data set.

    Raises:
        FileNotFoundError: If the data are not there; the message says what is missing and how to get it.
        ValueError: If an option does not exist, or the content of a file is wrong.

    Example:
        >>> load("digits")
        Dataset('digits': image (1, 8, 8), 10 classes, 1294 train, 144 valid, 359 test)
    """
    name, key = os.fspath(data), named(data)
    if key in _NAMED:
        return _call(key, _NAMED[key], (data_root(root),), options, key, root)
    if key is not None:
        prefix = next(prefix for prefix in _FAMILIES if key.startswith(prefix))
        return _call(key, _FAMILIES[prefix], (data_root(root), name[len(prefix) :]), options, key, root)
    path = Path(name).expanduser()
    if path.is_dir():
        return _call(name, _folder_reader(path), (path,), options, where=path)
    reader = next((reader for ending, reader in _FILES.items() if name.lower().endswith(ending)), None)
    if not path.exists() and reader is None and not path.suffix:
        near = _nearest(name, names())
        raise ValueError(
            f"there is no data set named {name!r} and no such file{near}; the names are {', '.join(names())}"
        )
    if not path.exists():
        near = _nearest(str(path), [str(other) for other in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise FileNotFoundError(
            f"there is no file {name}{near}; pass the path of a file or one of {', '.join(names())}"
        )
    if reader is None:
        hint = "; save the sheet as CSV" if path.suffix.lower() in _SHEETS else ""
        hint = "; save arrays x and y with numpy.savez" if path.suffix.lower() in _ARRAYS else hint
        hint = "; unpack it first" if path.suffix.lower() in _ARCHIVES else hint
        raise ValueError(f"{name} has an unknown format; supported files end in {', '.join(_FILES)}{hint}")
    return _call(name, reader, (path,), options, where=path)


def _nearest(name: str, known: Sequence[str]) -> str:
    """What was probably meant, in brackets; empty where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _folder_reader(path: Path) -> Reader:
    for accepts, reader in _FOLDERS:
        if accepts(path):
            return reader
    raise ValueError(
        f"the folder {path} holds neither folders of images (one per class) nor the tables of MIMIC-III; "
        "for a named set, give its name and pass this folder as `root`"
    )


def _call(
    name: str,
    reader: Reader,
    positional: tuple[Any, ...],
    options: dict[str, Any],
    key: str | None = None,
    where: PathLike | None = None,
) -> Dataset:
    signature = inspect.signature(reader)
    known = list(signature.parameters)[len(positional) :]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(f"data set {name!r} has no option {unknown[0]!r}; its options are {', '.join(known)}")
    defaults = {option: signature.parameters[option].default for option in known}
    path = None if where is None else os.path.abspath(os.path.expanduser(where))
    dataset = reader(*positional, **options)
    # Published sets are what they are.
    notes = dataset.notes if where is None else (*dataset.notes, *on_repeats(dataset))
    return replace(dataset, notes=notes, origin=Origin(key, _plain(defaults | options), path=path))


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options that decide what is read, as far as JSON has them."""
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {name: value for name, value in lists.items() if name not in _ONLY_HOW and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _adder(table: dict[str, Reader], name: str) -> Callable[[_Reader], _Reader]:
    def add(reader: _Reader) -> _Reader:
        if name in table:
            raise ValueError(f"a reader for {name!r} is already registered; choose another name")
        table[name] = reader
        return reader

    return add
