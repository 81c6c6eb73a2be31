"""Training through the engine against a bare loop: ``python -m benchmarks.training [--device cuda] [--out FOLDER]``.

On the CPU both loops run with a C library that keeps freed memory; ``--default-heap`` measures without.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from benchmarks._measure import keep_heap, medians, write
from leanbayes.training import TrainConfig, fit
from leanbayes.training.seeds import derive

LIMIT = 1.05
LR = 1e-3


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return lb.models.create("lenet5").to(device)


def bare(x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int, fused: bool | None) -> nn.Module:
    """What one writes by hand: nothing is measured, logged or checked."""
    net = network(x.device).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, fused=fused)
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(derive(0, "order", epoch))
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for indices in order.split(batch):
            loss = F.cross_entropy(net(x[indices]), y[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def engine(x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int, out: bool) -> nn.Module:
    net = network(x.device)
    config = TrainConfig(epochs=epochs, batch_size=batch, lr=LR, device=x.device.type, hold_out=0)
    with tempfile.TemporaryDirectory() as folder:
        fit(net, (x, y), config, out=folder if out else None, progress=False)
    return net


def measure(device: torch.device, repeats: int, epochs: int, examples: int, batch: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(examples, 1, 28, 28, generator=generator).to(device)
    y = torch.randint(10, (examples,), generator=generator).to(device)
    work = (x, y, epochs, batch)
    # Times are compared only where the engine computes what the loop computes.
    for ours, theirs in zip(engine(*work, out=False).parameters(), bare(*work, None).parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    functions = {
        "bare": lambda: bare(*work, None),
        "engine": lambda: engine(*work, out=False),
        "engine_with_checkpoints_and_logs": lambda: engine(*work, out=True),
    }
    if device.type == "cuda":
        # The engine takes the fused optimiser there by itself.
        functions["bare_fused"] = lambda: bare(*work, True)
    seconds = medians(functions, repeats, device)
    steps = epochs * -(-examples // batch)
    row = {"name": "LeNet-5, plain", "examples": examples, "batch": batch, "epochs": epochs, "repeats": repeats}
    row |= {f"{name}_ms_per_step": 1000 * value / steps for name, value in seconds.items()}
    for name in seconds:
        if name != "bare":
            row[f"{name}_over_bare"] = seconds[name] / seconds["bare"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--examples", type=int)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path, help="folder for the result file; nothing is written without it")
    parser.add_argument("--default-heap", action="store_true", help="leave the C library's heap as it is")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.default_heap:
        keep_heap("benchmarks.training")
    device = torch.device(arguments.device)
    cuda = device.type == "cuda"
    epochs = arguments.epochs or (5 if cuda else 2)
    examples = arguments.examples or (25600 if cuda else 1280)
    row = measure(device, arguments.repeats, epochs, examples, arguments.batch)
    for name, value in row.items():
        print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
    if arguments.out is not None:
        path = arguments.out / f"bench-training-{device.type}.json"
        write(path, "benchmarks.training", "bench-training", device, [row], limit=LIMIT)
    if row["engine_over_bare"] > LIMIT:
        sys.exit(f"the engine costs {row['engine_over_bare']:.3f}x the bare loop, above {LIMIT}x")


if __name__ == "__main__":
    main()
