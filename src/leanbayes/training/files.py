"""Files that are whole or not there, whenever the process ends."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import uuid
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from leanbayes.training.errors import FolderInUse, OutputError

LAST, BEST, START, REFIT, LOCK = "last.pt", "best.pt", "start.pt", "refit", ".lock"


def prepare_folder(out: str | os.PathLike[str]) -> Path:
    """Make the output folder and see that it can be written, before any time is spent on training."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = _temporary(folder / "writable")
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write in the output folder {folder}: {_why(error)}; choose another") from error
    return folder


def claim(folder: Path, wait_s: float = 0.0) -> BaseFileLock:
    """Keep other processes out of an output folder until the lock is released; one that is killed releases it.

    What a killed process left half written goes. A process may claim a folder twice, and then releases it twice.

    Args:
        folder: The output folder, which must exist.
        wait_s: Seconds to wait for another process.

    Raises:
        FolderInUse: If another process holds it for longer.
        OutputError: If it cannot be locked.
    """
    lock = FileLock(folder / LOCK, is_singleton=True)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise FolderInUse(f"another process writes to {folder}; wait until it ends, or choose another folder") from None
    except (OSError, NotImplementedError) as error:
        why = _why(error) if isinstance(error, OSError) else "its file system has no locks"
        raise OutputError(f"cannot lock the output folder {folder}: {why}; choose one on another disk") from error
    for name in (LAST, BEST, START):
        for half in folder.glob(f".{name}.*.tmp"):
            half.unlink(missing_ok=True)
    return lock


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write beside the file, put it on the disk, then move it into place."""
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {_why(error)}; the file that was there is intact, make room and resume"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some systems do not open folders
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values, atomically."""
    # In memory first: what torch raises when it cannot write a file does not say why.
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(path, buffer.getbuffer())


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; nothing but tensors and plain values is accepted."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise OutputError(f"cannot read the checkpoint {path}: {_why(error)}") from error
    except Exception as error:
        raise OutputError(
            f"the checkpoint {path} is damaged or was not written by leanbayes; delete it to start again"
        ) from error


def append_line(path: Path, line: str) -> None:
    """Append one line in one write; after an error the file ends where it ended before."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(handle).st_size
            content = f"{line}\n".encode()
            try:
                if os.write(handle, content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {_why(error)}; the last checkpoint is intact, resume from it"
        ) from error


def cut(path: Path, size: int) -> None:
    """Shorten a file to what it was when it had that many bytes."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _temporary(path: Path) -> Path:
    # Two processes may write the same file, each its own whole one.
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _why(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).rstrip(".")
