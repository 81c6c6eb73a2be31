"""Downloads that are checked, resumed and complete or not there."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from leanbayes.data._files import PathLike
from leanbayes.data.sources import SOURCES, Source

_BLOCK = 1 << 18
# What a connection that breaks raises: the rest is asked for again.
_BROKEN = (http.client.HTTPException, urllib.error.URLError, TimeoutError, ConnectionError)

Report = Callable[[int, int | None], None]


def obtain(name: str, folder: PathLike) -> None:
    """Download the files of a data set that are not in `folder` yet; archives are unpacked there.

    Args:
        name: A key of ``SOURCES``.
        folder: Where to put them; created if it does not exist.

    Raises:
        ValueError: If there is no public source, or a file does not have its published checksum.
        OSError: If a file cannot be downloaded or written.
    """
    if name not in SOURCES:
        raise ValueError(f"there is no public source for {name!r}; available for download: {', '.join(SOURCES)}")
    folder = Path(folder)
    for source in SOURCES[name]:
        if source.unpacks_to is None or not (folder / source.unpacks_to).is_dir():
            with _progress_bar(source.filename) as progress:
                path = fetch(source.url, folder / source.filename, source.checksum, progress=progress)
            if source.unpacks_to is not None:
                unpack(path, folder, source)


def fetch(
    url: str,
    target: PathLike,
    checksum: str,
    *,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
    progress: Report | None = None,
) -> Path:
    """Download one file; it appears under its name only when it is complete and has its checksum.

    A partial download is kept next to it as ``<name>.part``. A broken transfer, in this call or an earlier one,
    continues from there if the server can, and starts over if not. Processes that fetch the same file wait for the
    first of them.

    Args:
        url: Where it is.
        target: The name it gets; an existing file is left alone.
        checksum: ``"sha256:..."`` or ``"md5:..."``.
        attempts: Attempts without a single byte before giving up.
        pause: Seconds to wait after the first such attempt, twice as long after each further one.
        timeout: Seconds without a byte before a transfer counts as broken.
        progress: Called with the bytes so far and the total, if the server tells.

    Returns:
        The target.

    Raises:
        ValueError: If the download does not have the checksum; it is removed.
        OSError: If the transfer fails for good; the part received is kept.
    """
    target = Path(target)
    if target.exists():
        return target
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"only http and https addresses are downloaded, not {url}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.parent):
            if not target.exists():
                transfer = _Transfer(url, attempts, pause, timeout, progress or (lambda done, total: None))
                _fetch(transfer, target, checksum)
    except _BROKEN as error:
        raise OSError(f"{url} cannot be downloaded ({error}); try again; what has arrived so far is kept") from None
    except OSError as error:
        raise OSError(f"{target} cannot be written: {error.strerror or error}") from None
    return target


@dataclass(frozen=True)
class _Transfer:
    """One download: where from, and how patiently."""

    url: str
    attempts: int
    pause: float
    timeout: float
    progress: Report


def _fetch(transfer: _Transfer, target: Path, checksum: str) -> None:
    part = target.with_name(target.name + ".part")
    resumed = _size(part) > 0
    _complete(transfer, part)
    if resumed and not _agrees(part, checksum):
        # What lay there may have been the beginning of another file.
        part.unlink()
        _complete(transfer, part)
    if not _agrees(part, checksum):
        part.unlink()
        raise ValueError(
            f"the download from {transfer.url} does not have the published checksum {checksum} and was removed; "
            f"try again later, or put the right file at {target}"
        )
    os.replace(part, target)


def _complete(transfer: _Transfer, part: Path) -> None:
    """Append to `part` until the file is whole; give up after so many attempts in a row that brought nothing."""
    failures = 0
    while True:
        before = _size(part)
        try:
            if _request(transfer, part, before):
                return
            error: Exception = ConnectionError("the connection ends before the file")
        except urllib.error.HTTPError as refused:
            with refused:
                if refused.code == 416 and before:
                    # Nothing follows what is there: it is whole, or the beginning of another file.
                    return
                if refused.code < 500 and refused.code not in (408, 429):
                    raise ConnectionError(f"the server answered {refused.code} {refused.reason}") from None
                error = ConnectionError(f"the server answered {refused.code} {refused.reason}")
        except _BROKEN as broken:
            error = broken
        failures = 0 if _size(part) > before else failures + 1
        if failures >= transfer.attempts:
            raise error
        time.sleep(transfer.pause * (2**failures - 1))


def _request(transfer: _Transfer, part: Path, start: int) -> bool:
    """One request for what follows byte `start`; whether the file is whole then."""
    headers = {"User-Agent": "leanbayes", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(transfer.url, headers=headers)
    with urllib.request.urlopen(request, timeout=transfer.timeout) as response:
        # A server that knows no ranges sends everything with the status 200.
        continues = response.status == 206
        if continues and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ConnectionError("the server sent a different range than requested")
        size = start if continues else 0
        length = response.headers.get("Content-Length")
        total = size + int(length) if length is not None else None
        with open(part, "ab" if continues else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                size += len(block)
                transfer.progress(size, total)
            file.flush()
            os.fsync(file.fileno())
    return total is None or size >= total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _agrees(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    if kind not in ("sha256", "md5") or not expected:
        raise ValueError(f"a checksum is written as sha256:... or md5:..., not {checksum!r}")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return digest.hexdigest() == expected.lower()


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time download to a folder; the system frees the lock of a process that dies."""
    try:
        import fcntl
    except ModuleNotFoundError:
        # Without file locks two processes may both download; their checksums still decide what appears.
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def unpack(archive: Path, folder: Path, source: Source) -> Path:
    """Unpack a tar archive beside its final place and move the folder there when it is complete."""
    assert source.unpacks_to is not None
    target = folder / source.unpacks_to
    scratch = folder / f".{source.unpacks_to}.{uuid.uuid4().hex}.tmp"
    try:
        with tarfile.open(archive) as tar:
            # "data": no links or devices, nothing outside the folder.
            tar.extractall(scratch, filter="data")
        if not (scratch / source.unpacks_to).is_dir():
            raise ValueError(f"{archive} does not hold a folder {source.unpacks_to}; remove it and try again")
        if not target.exists():
            os.replace(scratch / source.unpacks_to, target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is not a complete archive ({error}); remove it and try again") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextlib.contextmanager
def _progress_bar(title: str) -> Iterator[Report]:
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
