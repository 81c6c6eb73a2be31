"""Medians of interleaved runs, and the file that a result is."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from leanbayes._machine import device_name, versions
from leanbayes.bench.measuring import HEAP, interleaved, keep_heap

__all__ = ["HEAP", "keep_heap", "medians", "write"]


def medians(functions: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each function, of rounds that go through all of them."""
    times = interleaved(functions, repeats, device)
    return {name: statistics.median(values) for name, values in times.items()}


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
        "device": device_name(device.type),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        "heap": {name: os.environ[name] for name in HEAP if name in os.environ},
        **more,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
