"""Training on several devices through Lightning Fabric."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import Batch
from leanbayes.training.execution import Execution
from leanbayes.training.runtime import OneProcess, Runtime, choose_device, compiled_as_set


def import_fabric() -> Any:
    """Fabric's module, under whichever of its two names it is installed."""
    # The first name imports less.
    for name in ("lightning_fabric", "lightning.fabric"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("training on several devices needs Lightning Fabric: pip install 'leanbayes[train]'")


def make_fabric(config: TrainConfig) -> Any:
    """A launched Fabric for a configuration."""
    strategy = "ddp" if config.strategy == "auto" and config.devices > 1 else config.strategy
    accelerator = choose_device(config.device).type
    # Not the precision: Fabric would round inputs and targets as well, and FSDP the parameters.
    fabric = import_fabric().Fabric(accelerator=accelerator, devices=config.devices, strategy=strategy)
    fabric.launch()
    return fabric


class FabricRuntime(Runtime):
    """Processes that share the work: DDP, FSDP, or whatever strategy the given Fabric has."""

    def __init__(self, config: TrainConfig, fabric: Any = None) -> None:
        self.fabric = make_fabric(config) if fabric is None else fabric
        self.device = self.fabric.device
        self.rank = self.fabric.global_rank
        self.world = self.fabric.world_size

    def setup(self, elbo: ELBO, execution: Execution) -> None:
        """See `Runtime`."""
        self.elbo = elbo
        self.half = execution.precision == "bf16-mixed"
        self._compiled = bool(execution.compile)
        # Fabric compiles what it wraps, where it is given a compiled module.
        self.module = self.fabric.setup_module(compiled_as_set(elbo, execution.compile))

    @property
    def compiled(self) -> bool:
        """See `Runtime`."""
        return self._compiled

    @property
    def _forward_module(self) -> Any:
        """What the strategy made of the objective, without Fabric's conversion of inputs."""
        return self.module._forward_module

    @property
    def _wrapped(self) -> Any:
        """The DDP or FSDP module, or the objective itself."""
        return getattr(self._forward_module, "_orig_mod", self._forward_module)

    @property
    def _sharded(self) -> bool:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return isinstance(self._wrapped, FullyShardedDataParallel)

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half else self.fabric.autocast()

    def forward(self, batch: Batch) -> Terms:
        """See `Runtime`."""
        with self._autocast():
            return self._forward_module(batch.x, batch.y, weights=batch.weights)

    def evaluate(self, batch: Batch) -> Terms:
        """See `Runtime`."""
        if self._sharded:
            return self.forward(batch)
        # DDP would exchange buffers here, although nothing changes them.
        with self._autocast():
            return self.elbo(batch.x, batch.y, weights=batch.weights)

    def backward(self, loss: Tensor) -> None:
        """See `Runtime`."""
        self.fabric.backward(loss)

    def accumulating(self) -> AbstractContextManager:
        """See `Runtime`."""
        return self.fabric.no_backward_sync(self.module, enabled=self.world > 1)

    def clip(self, optimizer: Optimizer, max_norm: float) -> None:
        """See `Runtime`."""
        self.fabric.clip_gradients(self.module, optimizer, max_norm=max_norm, error_if_nonfinite=False)

    def total(self, values: list[float]) -> list[float]:
        """See `Runtime`."""
        if self.world == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """See `Runtime`."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def from_first(self, value: Any) -> Any:
        """See `Runtime`."""
        return self.fabric.broadcast(value)

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `Runtime`."""
        if not self._sharded:
            return super().states(optimizer)
        from torch.distributed.checkpoint.state_dict import get_state_dict

        return get_state_dict(self._wrapped, optimizer, options=self._whole())  # pyright: ignore[reportReturnType]

    def load_states(self, optimizer: Optimizer | None, elbo: dict[str, Any], optimizer_state: dict[str, Any]) -> None:
        """See `Runtime`."""
        if not self._sharded:
            super().load_states(optimizer, elbo, optimizer_state)
            return
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        # The optimiser first: torch makes its state by a step of size 0, which the objective counts.
        if optimizer is not None:
            set_optimizer_state_dict(self._wrapped, optimizer, optimizer_state, options=self._whole())
        set_model_state_dict(self._wrapped, elbo, options=self._whole())

    def _whole(self) -> Any:
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        # torch crashes where it is to move to the CPU what is there already.
        return StateDictOptions(full_state_dict=True, cpu_offload=self.device.type != "cpu")


def make_runtime(config: TrainConfig, fabric: Any = None) -> Runtime:
    """One process where one is asked for; Fabric for several, or where the caller brings it."""
    if fabric is None and config.devices == 1 and config.strategy == "auto":
        return OneProcess(config)
    return FabricRuntime(config, fabric)
