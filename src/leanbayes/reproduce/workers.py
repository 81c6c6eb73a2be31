"""Independent pieces of a recipe's work in several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import torch

from leanbayes.reproduce.leg import LegOver

Piece = TypeVar("Piece")

# The time is over; or data, disk or a package is not there, which other pieces would find, too.
ENDS_ALL = (LegOver, OSError, ImportError)


def in_processes(
    work: Callable[[Piece], object], pieces: Iterable[Piece], workers: int, before_each: Callable[[], None]
) -> list[BaseException]:
    """Do every piece, `workers` of them at a time, each in one thread.

    After a piece that fails the others go on; after one that raises what `ENDS_ALL` names no further one is begun.

    Args:
        work: Does a piece and keeps what it found by itself; a function of a module, so that processes can import it.
        pieces: What it takes.
        workers: Number of processes.
        before_each: Called before a piece is begun; where it raises, no further piece is, and those under way end.

    Returns:
        What the pieces that failed have raised, in the order of time.
    """
    errors: list[BaseException] = []
    # Not by a fork, which would copy the locks of torch's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C may come within the pool and while it waits for the pieces under way, too.
    with (
        _ends_processes_on_interrupt(),
        ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool,
        _ends_processes_on_interrupt(),
    ):
        running: set[Future[object]] = set()
        for piece in pieces:
            before_each()
            with _interrupts_ignored():
                running.add(pool.submit(work, piece))
            if len(running) == workers:
                running = _without_finished(running, errors)
        while running:
            running = _without_finished(running, errors)
    return errors


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that start in here are deaf to Ctrl-C, which would make each of them print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears Ctrl-C, or may be made deaf to it
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ends_processes_on_interrupt() -> Iterator[None]:
    """End the processes that were started in here on Ctrl-C, which they do not hear themselves."""
    others = multiprocessing.active_children()
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise


def _without_finished(running: set[Future[object]], errors: list[BaseException]) -> set[Future[object]]:
    finished, rest = wait(running, return_when=FIRST_COMPLETED)
    for error in filter(None, (future.exception() for future in finished)):
        if isinstance(error, (*ENDS_ALL, BrokenProcessPool)):
            raise error
        errors.append(error)
    return set(rest)


def _begin() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that began it was killed: nobody waits for its work any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
