"""Timing: ratios from interleaved runs, medians after a warm-up, and the file that a result is."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import leanbayes as lb

HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 32)}


def keep_heap(module: str) -> None:
    """Start this program again with a C library that keeps freed memory, unless it does so already.

    By itself it gives freed memory back to the system or not, as it happens, and each page that it takes again costs
    time: up to a tenth, in one loop or the other. The settings are read when a process starts.
    """
    if not HEAP.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | HEAP)


def interleaved(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each function; rounds go through all of them, each beginning with another one.

    So drift, and what one function leaves to the next, hits all alike.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    order = list(functions.items())
    for number in range(repeats):
        first = number % len(order)
        for name, function in order[first:] + order[:first]:
            _synchronise(device)
            start = time.perf_counter()
            function()
            _synchronise(device)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _command(module: str) -> str:
    """How this program was started, with the folder of the results where the repository has it."""
    words = list(sys.argv[1:])
    if "--out" in words:
        words[words.index("--out") + 1] = "results"
    return " ".join(["python -m", module, *words])


def write(path: Path, module: str, name: str, device: torch.device, rows: list[dict], **more: object) -> None:
    """Write a result: what was run, on what, when, and the figures."""
    record = {
        "id": name,
        "command": _command(module),
        "seeds": [0],
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "versions": {"leanbayes": lb.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
        "heap": {name: os.environ[name] for name in HEAP if name in os.environ},
        **more,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
