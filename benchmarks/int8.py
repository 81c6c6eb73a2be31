"""Weights in eight bits: ``python -m benchmarks.int8 [--repeats 9] [--seeds 0 1 2] [--threads 1] [--out FOLDER]``.

Two parts: what rounding costs networks that were trained on the digits, and how long layers of some sizes take.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

import leanbayes as lb
from benchmarks._measure import keep_heap, write
from leanbayes._int8 import has_int8_products
from leanbayes.bench.measuring import interleaved
from leanbayes.compare.measure import measure, predict_all
from leanbayes.compare.presets import preset
from leanbayes.compare.train import Budget, train
from leanbayes.data import Dataset, load
from leanbayes.objectives.likelihoods import Likelihood

CPU = torch.device("cpu")
SAMPLES = 32
METHODS = ("rank1", "emp")
METRICS = ("nll", "accuracy", "ece")


def _convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


def _dense(width: int) -> nn.Module:
    return lb.models.create("mlp", in_features=64, hidden=[width, width], classes=10, batch_norm=True)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "two dense layers of 200": partial(_dense, 200),
    "two dense layers of 1024": partial(_dense, 1024),
    "two convolutions of 64 channels": _convolutional,
}


def digits(seeds: list[int], repeats: int) -> Iterator[dict]:
    """Networks that were trained on the digits, before and after: metrics of the test images, bytes, time."""
    dataset = load("digits")
    x, y = dataset.ready("test")
    for network, build in NETWORKS.items():
        for name in METHODS:
            pairs, metrics = [], []
            for seed in seeds:
                *models, likelihood = _trained(dataset, name, build, seed)
                pairs.append(models)
                metrics.append([measure(predict_all(model, x, SAMPLES, likelihood), y) for model in models])
            model, quantised = pairs[0]
            seconds = _fastest(
                {
                    "float32": lambda model=model: lb.predict(model, x, SAMPLES),
                    "int8": lambda quantised=quantised: lb.predict(quantised, x, SAMPLES),
                },
                repeats,
            )
            yield {
                "name": f"{preset(name).title}, {network}",
                "samples": SAMPLES,
                "examples": len(x),
                "float32": {metric: [before[metric] for before, _ in metrics] for metric in METRICS},
                "int8": {metric: [after[metric] for _, after in metrics] for metric in METRICS},
                "bytes_float32": lb.summary(model).bytes,
                "bytes_int8": lb.summary(quantised).bytes,
                "int8_over_float32": seconds["int8"] / seconds["float32"],
            }


def _trained(
    dataset: Dataset, name: str, build: Callable[[], nn.Module], seed: int
) -> tuple[nn.Module, nn.Module, Likelihood]:
    """A network, trained as `leanbayes compare digits` trains, the same in eight bits, and its likelihood."""
    method = preset(name)
    torch.manual_seed(seed)
    model = method.convert(build())
    config = Budget.of("fast", len(dataset.train)).config(method, seed, "cpu")
    likelihood, _ = train(model, dataset, config, progress=False)
    return model.eval(), lb.quantize(model), likelihood


def layers(repeats: int) -> Iterator[dict]:
    """Rank-1 layers of several sizes: one pass, in eight bits and in bfloat16, over one in float32."""
    for width in (1024, 2048, 4096):
        for rows in (1, 32, 512):
            yield _layer(f"dense, {width} to {width}", nn.Linear(width, width), torch.randn(rows, width), repeats)
    for channels, size in ((64, 32), (128, 16), (256, 8)):
        conv = nn.Conv2d(channels, channels, 3, padding=1)
        for rows in (1, 32):
            x = torch.randn(rows, channels, size, size)
            yield _layer(f"3x3 convolution, {channels} channels, {size}x{size}", conv, x, repeats)


@torch.no_grad()
def _layer(name: str, plain: nn.Module, x: torch.Tensor, repeats: int) -> dict:
    model = lb.bayesianize(nn.Sequential(copy.deepcopy(plain)), lb.Rank1()).eval()
    quantised, half, narrow = lb.quantize(model), copy.deepcopy(model).bfloat16(), x.bfloat16()
    seconds = _fastest(
        {"float32": lambda: model(x), "bfloat16": lambda: half(narrow), "int8": lambda: quantised(x)}, repeats
    )
    return {
        "name": name,
        "batch": len(x),
        "bytes_float32": lb.summary(model).bytes,
        "bytes_int8": lb.summary(quantised).bytes,
        "int8_over_float32": seconds["int8"] / seconds["float32"],
        "bfloat16_over_float32": seconds["bfloat16"] / seconds["float32"],
        "seconds": seconds,
    }


def _fastest(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each function: of interleaved runs the fastest, as whatever else runs only adds to it."""
    return {name: min(values) for name, values in interleaved(functions, repeats, CPU).items()}


def main() -> None:
    """Measure, print, and write the result where a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--out", type=Path, help="folder for the result file; nothing is written without it")
    arguments = parser.parse_args()
    keep_heap("benchmarks.int8")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    sizes = [_shown(row) for row in layers(arguments.repeats)]
    trained = [_shown(row) for row in digits(arguments.seeds, arguments.repeats)]
    if arguments.out is not None:
        more = {"seeds": arguments.seeds, "int8_products": has_int8_products(), "digits": trained}
        write(arguments.out / "bench-int8-cpu.json", "benchmarks.int8", "bench-int8", CPU, sizes, **more)


def _shown(row: dict) -> dict:
    text = f"{row['name']}: time {row['int8_over_float32']:.2f}x, bytes {row['bytes_int8'] / row['bytes_float32']:.2f}x"
    if "int8" in row:
        before, after = (statistics.fmean(row[kind]["nll"]) for kind in ("float32", "int8"))
        text += f", NLL {before:.4f} to {after:.4f}"
    print(text, flush=True)
    return row


if __name__ == "__main__":
    main()
