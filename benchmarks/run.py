"""Run the benchmarks: ``python -m benchmarks.run [--device cuda] [--repeats 9] [--only NAME] [--out results]``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks._measure import keep_heap, write
from benchmarks.predict import against_a_loop, partly_random


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", help="one network, such as MLP")
    parser.add_argument("--part", choices=("loop", "partly", "all"), default="all")
    parser.add_argument("--out", type=Path, help="folder for the result files; nothing is written without it")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cpu":
        keep_heap("benchmarks.run")
    if arguments.part in ("partly", "all") and arguments.only is None:
        _report("bench-predict-partly", partly_random(device, arguments.repeats), device, arguments.out)
    if arguments.part in ("loop", "all"):
        _report("bench-predict-loop", against_a_loop(device, arguments.repeats, arguments.only), device, arguments.out)


def _report(name: str, rows_iterator, device: torch.device, out: Path | None) -> None:
    rows = []
    for row in rows_iterator:
        rows.append(row)
        ratios = ", ".join(f"{key} {value:.2f}" for key, value in row.items() if "_over_" in key)
        print(f"{row['name']}: {row['samples']} samples of {row['batch']} rows: {ratios}", flush=True)
    if out is not None:
        write(out / f"{name}-{device.type}.json", "benchmarks.run", name, device, rows)


if __name__ == "__main__":
    main()
