"""How steps run on the device at hand: precision, compiled or not, recorded or not."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from leanbayes._components import mixture_parts
from leanbayes._owners import instances
from leanbayes.nn.ensemble import Ensemble
from leanbayes.training.config import TrainConfig

# Compiling takes about a minute. It has paid for itself after this many rows times trainable parameters: on an H200,
# after some 90 epochs of a ResNet-18 on 50,000 images.
_WORTH_COMPILING = 5e13


@dataclass(frozen=True)
class Execution:
    """What "auto" comes to.

    Attributes:
        precision: "32", "tf32" (float32 with TF32 products) or "bf16-mixed".
        compile: Whether to compile; a text names a backend.
        record: Whether to record the optimiser step as a CUDA graph.
        must: Whether what cannot be compiled or recorded is an error, as it was asked for by name.
    """

    precision: str
    compile: bool | str
    record: bool
    must: bool

    def describe(self, *, compiled: bool, recorded: bool) -> str:
        """In words, for results: such as "float32 with TF32 products, recorded"."""
        words = {"32": "float32", "tf32": "float32 with TF32 products", "bf16-mixed": "bfloat16 and float32"}
        how = [name for name, on in (("compiled", compiled), ("recorded", recorded)) if on]
        return f"{words[self.precision]}, {' and '.join(how) or 'eager'}"


def choose_execution(
    config: TrainConfig, device: torch.device, world: int, model: nn.Module, examples: int | None
) -> Execution:
    """Settle what a configuration leaves open, by the device and the size of the work; nothing is timed.

    Args:
        config: What was asked for.
        device: Where it runs.
        world: Number of processes.
        model: What is trained.
        examples: How many an epoch has, None where that is not known.
    """
    on_gpu = device.type == "cuda"
    precision = config.precision
    if precision == "auto":
        precision = "tf32" if on_gpu else "32"
    compile = config.compile
    if compile == "auto":
        parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        work = config.epochs * (examples or 0) * _rows(config, model) * parameters
        compile = on_gpu and world == 1 and work >= _WORTH_COMPILING
    recordable = on_gpu and world == 1 and config.accumulate == 1
    return Execution(
        precision,
        compile,
        record=bool(config.cuda_graph) and recordable,
        must=config.compile not in ("auto", False) or config.cuda_graph is True,
    )


def _rows(config: TrainConfig, model: nn.Module) -> int:
    """Rows that an example becomes in a pass; those of an ensemble's members each meet parameters of their own."""
    members = {id(one.group.identity) for one in instances(model, Ensemble)}
    points = [
        prod(group.components for group in part.groups if id(group.identity) not in members)
        for part in mixture_parts(model)
    ]
    return config.samples * max(points, default=1) if config.tile else config.samples


class Tf32Products:
    """Context manager: float32 matrix products use TF32, as convolutions do by default.

    The setting is one for the process; it comes back when the last of several threads leaves.
    """

    _lock = threading.Lock()
    _inside = 0
    _before = ""

    def __enter__(self) -> None:
        cls = Tf32Products
        with cls._lock:
            if not cls._inside:
                cls._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("high")
            cls._inside += 1

    def __exit__(self, *error: object) -> None:
        cls = Tf32Products
        with cls._lock:
            cls._inside -= 1
            if not cls._inside:
                torch.set_float32_matmul_precision(cls._before)
