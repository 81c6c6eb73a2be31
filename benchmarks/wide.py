"""Layers of a wide transformer block: ``python -m benchmarks.wide [--device cuda] [--width 4096] [--out FOLDER]``.

Both passes of local reparameterisation against its products alone, and draws of whole weights against the time that
their bytes take.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks import wide_draws, wide_layers
from benchmarks._measure import keep_heap, write

NAME = "bench-wide"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=4096, help="features of a token")
    parser.add_argument("--rows", type=int, default=16, help="sequences in a batch")
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence")
    parser.add_argument("--repeats", type=int, default=20, help="rounds to take medians of")
    parser.add_argument("--out", type=Path, help="folder for the result file; nothing is written without it")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cpu":
        keep_heap("benchmarks.wide")
    sizes = {"width": arguments.width, "rows": arguments.rows, "tokens": arguments.tokens, "repeats": arguments.repeats}
    layers, draws = [], []
    for row in wide_layers.measure(arguments.width, arguments.rows, arguments.tokens, arguments.repeats, device):
        layers.append(row)
        print(f"{row['name']}: local {row['local_over_products']:.2f}x its products", flush=True)
    for row in wide_draws.measure(arguments.width, arguments.repeats, device):
        draws.append(row)
        print(f"{row['name']}, {row['pass']}: {row['draw_over_bytes']:.2f}x its bytes", flush=True)
    if arguments.out is not None:
        path = arguments.out / f"{NAME}-{device.type}.json"
        write(path, "benchmarks.wide", NAME, device, layers, draws=draws, settings=sizes)


if __name__ == "__main__":
    main()
