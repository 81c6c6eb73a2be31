"""One network on one device in one precision: what all contenders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes.bench.measuring import interleaved
from leanbayes.bench.networks import Network

Precision = Literal["32", "bf16"]
DATASET_SIZE = 50_000


@dataclass(frozen=True)
class Setup:
    """What a contender is measured on.

    Attributes:
        network: The plain network.
        device: Where it runs.
        precision: "bf16" runs under autocast, images with channels last.
        batch: Examples of a training step.
        rows: Examples of a prediction.
        repeats: Rounds of which medians are taken.
        round_s: Seconds that a round takes at least.
    """

    network: Network
    device: torch.device
    precision: Precision
    batch: int
    rows: int
    repeats: int
    round_s: float

    def net(self) -> nn.Module:
        """The plain network on the CPU; always with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.network.build()

    def place(self, model: nn.Module) -> nn.Module:
        """A model on the device, in the layout that the precision asks for."""
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self._channels_last else model  # pyright: ignore

    def examples(self, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs ``[rows, *shape]`` and targets ``[rows]`` on the device; always the same."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, *self.network.shape, generator=generator).to(self.device)
        y = torch.randint(self.network.classes, (rows,), generator=generator).to(self.device)
        return (x.contiguous(memory_format=torch.channels_last) if self._channels_last else x), y

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.precision == "32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def times(self, functions: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Seconds of a call of each function, one value per round, see `interleaved`."""
        return interleaved(functions, self.repeats, self.device, self.round_s)

    @property
    def _channels_last(self) -> bool:
        return self.precision == "bf16" and self.network.images and len(self.network.shape) == 3
