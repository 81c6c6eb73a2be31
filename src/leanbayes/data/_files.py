"""Where data lie, and what is said when they do not."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT_VARIABLE = "LEANBAYES_DATA"

PathLike = str | os.PathLike[str]


class NotComplete(FileNotFoundError):
    """A part of a data set is there, and the rest is missing."""


def data_root(root: PathLike | None = None) -> Path:
    """The folder of data sets: `root`, or the environment variable LEANBAYES_DATA, or ``~/.cache/leanbayes``."""
    chosen = root if root is not None else os.environ.get(ROOT_VARIABLE) or Path.home() / ".cache" / "leanbayes"
    return Path(chosen).expanduser()


def locate(what: str, folders: Sequence[Path], needed: Iterable[str], get: str) -> Path:
    """The first of `folders` that holds all the `needed` files, each plain or as ``.gz``.

    Args:
        what: The data set's name for messages.
        folders: Where to look, in this order.
        needed: Names of files or folders.
        get: How to get the data, the end of the message.

    Returns:
        The folder.

    Raises:
        NotComplete: If one of them holds some of the files.
        FileNotFoundError: If there is none; one sentence says what is missing, where it was looked for, and `get`.
    """
    names = list(needed)
    closest: tuple[Path, list[str]] | None = None
    for folder in folders:
        missing = [name for name in names if find(folder, name) is None]
        if not missing:
            return folder
        if len(missing) < len(names) and (closest is None or len(missing) < len(closest[1])):
            closest = folder, missing
    if closest is not None:
        raise NotComplete(f"{what} is not complete: {closest[0]} lacks {', '.join(closest[1])}; {get}")
    places = ", ".join(dict.fromkeys(map(str, folders)))
    raise FileNotFoundError(f"{what} was not found: looked for {', '.join(names)} in {places}; {get}")


def find(folder: Path, name: str) -> Path | None:
    """The file or folder `name` in `folder`, or its ``.gz``."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    return None


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in ``.gz``."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                return stream.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}); get it again") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}") from None
