"""Times of functions that take turns, and the memory that one takes at its peak."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}
_MOST_CALLS = 100
_WARM_UP = 3


def keep_heap(module: str) -> None:
    """Start this program again with a C library that keeps freed memory, unless it does so already.

    By itself it gives freed memory back to the system or not, as it happens, and each page that it takes again costs
    time: up to a tenth, in one loop or the other. The settings are read when a process starts.
    """
    if not HEAP.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | HEAP)


def interleaved(
    functions: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, round_s: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of a call of each function, one value per round; rounds begin with another function each.

    So drift, and what one function leaves to the next, hits all alike.

    Args:
        functions: What to time, by name.
        repeats: Rounds, after a warm-up.
        device: Whose queue is waited for.
        round_s: A function is called in each round as often as takes that long, without waits in between, as in a
            loop of training steps; once where 0.
    """
    calls = {name: _warm_up(function, device, round_s) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions.items())
    for number in range(repeats):
        first = number % len(order)
        for name, function in order[first:] + order[:first]:
            times[name].append(_seconds(function, calls[name], device))
    return times


def _warm_up(function: Callable[[], object], device: torch.device, round_s: float) -> int:
    """Run a function until it has its speed; returns how many calls fill a round."""
    function()
    if round_s <= 0:
        return 1
    once = min(_seconds(function, 1, device) for _ in range(_WARM_UP - 1))
    return max(1, min(_MOST_CALLS, math.ceil(round_s / max(once, 1e-9))))


def _seconds(function: Callable[[], object], calls: int, device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronise(device)
    return (time.perf_counter() - start) / calls


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third quartile.

    Example:
        >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
        [2.0, 4.0]
    """
    if len(values) == 1:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def peak_bytes(build: Callable[[], Callable[[], object]], device: torch.device) -> int:
    """GPU memory that a function takes at its peak, together with all that it was built from.

    A recorded function allocates nothing when it is played back: its memory is what its recording keeps reserved.
    Hence the larger of the peak of a call and of what stays reserved is taken, for all functions alike.

    Args:
        build: Makes the function, with its network, optimiser and data.
        device: A GPU.
    """
    # Building compiles anew, which gives back what earlier recordings of compiled code keep: it has to go before.
    torch._dynamo.reset()
    free(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    function = build()
    for _ in range(_WARM_UP):
        function()
    synchronise(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    synchronise(device)
    peak = torch.cuda.max_memory_allocated(device) - allocated
    free(device)
    kept = torch.cuda.memory_reserved(device) - reserved
    return max(peak, kept)


def free(device: torch.device) -> None:
    """Give a GPU's memory back that nothing refers to any more; a CPU's goes back by itself."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


@contextlib.contextmanager
def settled(device: torch.device) -> Iterator[None]:
    """Convolutions choose their algorithm by trial, as trainings on a GPU do; the setting is restored."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
