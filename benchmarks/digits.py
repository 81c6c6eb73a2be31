"""`leanbayes compare digits` on two devices: ``python -m benchmarks.digits [--out FOLDER] [-- OPTION ...]``.

The whole command is timed, from its start to its end, as one types it. What follows ``--`` is passed to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks._measure import write
from leanbayes.compare.checkpoint import read_json
from leanbayes.compare.run import RESULT

NAME = "bench-digits"
WHOLE = "whole command"
# How the command announces a method.
_BEGINS = " ..."


def run(device: str, options: list[str]) -> tuple[dict[str, float], dict]:
    """Seconds of the whole command, of its start-up, of each method and of the report, and what it found."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["compare", "digits", "--device", device, "--out", f"{folder}/out", *options]
        begin, starts = time.time(), {}
        errors = Path(folder, "errors")
        with (
            errors.open("w") as stderr,
            subprocess.Popen(
                [sys.executable, "-u", "-m", "leanbayes.cli", *words],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | {"COLUMNS": "200"},
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.rstrip().endswith(_BEGINS):
                    starts[line.strip().removesuffix(_BEGINS)] = time.time()
        end = time.time()
        if process.returncode:
            raise RuntimeError(f"leanbayes {' '.join(words)}: {errors.read_text()[-1000:]}")
        path = Path(folder, "out", RESULT)
        # Written for the last time when the last method is done; the report follows.
        times = [*starts.values(), path.stat().st_mtime]
        seconds = {name: after - before for name, before, after in zip(starts, times, times[1:])}
        result = read_json(path)
    assert result is not None
    return {WHOLE: end - begin, "start-up": times[0] - begin, **seconds, "report": end - times[-1]}, result


def measure(devices: list[str], repeats: int, options: list[str]) -> tuple[list[dict], dict[str, str]]:
    """Rows of medians over rounds in which devices take turns, and what the devices are."""
    times: dict[str, list[dict[str, float]]] = {device: [] for device in devices}
    found: dict[str, dict] = {}
    for _ in range(repeats):
        for device in devices:
            seconds, found[device] = run(device, options)
            times[device].append(seconds)
            print(f"{found[device]['device']}: {seconds[WHOLE]:.1f} s", flush=True)
    reached = {
        device: {each["title"]: each["metrics"]["accuracy"][0] for each in one["methods"]}
        for device, one in found.items()
    }
    rows = []
    for what in times[devices[0]][0]:
        seconds = {device: median(one[what] for one in times[device]) for device in devices}
        over = {f"{b}_over_{a}": seconds[b] / seconds[a] for a, b in zip(devices, devices[1:])}
        accuracy = {device: values[what] for device, values in reached.items() if what in values}
        rows.append({"name": what, **over, "seconds": seconds, "accuracy": accuracy})
    return rows, {device: one["device"] for device, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=1, help="rounds to take medians of")
    parser.add_argument("--out", type=Path, help="folder for the result file; nothing is written without it")
    parser.add_argument("options", nargs="*", help="of the command, after --")
    arguments = parser.parse_args()
    rows, names = measure(arguments.devices, arguments.repeats, arguments.options)
    for row in rows:
        print(f"{row['name']}: {', '.join(f'{device} {s:.2f} s' for device, s in row['seconds'].items())}")
    if arguments.out is not None:
        path, device = arguments.out / f"{NAME}.json", torch.device(arguments.devices[-1])
        write(path, "benchmarks.digits", NAME, device, rows, devices=names, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
