"""Independent pieces of a recipe's work in several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

import torch

Piece = TypeVar("Piece")


def in_processes(
    work: Callable[[Piece], object], pieces: Iterable[Piece], workers: int, before_each: Callable[[], None]
) -> None:
    """Do every piece, `workers` of them at a time, each in one thread.

    Args:
        work: Does a piece and keeps what it found by itself; a function of a module, so that processes can import it.
        pieces: What it takes.
        workers: Number of processes.
        before_each: Called before a piece is begun; where it raises, no further piece is, and those under way end.
    """
    # Not by a fork, which would copy the locks of torch's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        running: set[Future[object]] = set()
        for piece in pieces:
            before_each()
            running.add(pool.submit(work, piece))
            if len(running) == workers:
                running = _without_finished(running)
        while running:
            running = _without_finished(running)


def _without_finished(running: set[Future[object]]) -> set[Future[object]]:
    finished, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        future.result()
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
