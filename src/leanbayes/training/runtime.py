"""Where training runs: one process, or several through Lightning Fabric. The training loop is the same."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes._kl import kl
from leanbayes.compiling import compiled, first_line, is_compile_error
from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import Batch
from leanbayes.training.errors import OutputError
from leanbayes.training.execution import Execution

_LOG = logging.getLogger("leanbayes")
_OWN = ("lr", "fused", "foreach", "capturable")


class Runtime(ABC):
    """What the training loop asks of the machine.

    Attributes:
        device: Where this process computes.
        rank: Number of this process.
        world: Number of processes.
        elbo: The objective, once it is set up.
    """

    device: torch.device
    rank: int = 0
    world: int = 1
    elbo: ELBO

    @abstractmethod
    def setup(self, elbo: ELBO, execution: Execution) -> None:
        """Move the objective to the device and wrap it as needed; comes before the optimiser is made."""

    @property
    def compiled(self) -> bool:
        """Whether passes of whole batches are compiled."""
        return False

    @abstractmethod
    def forward(self, batch: Batch) -> Terms:
        """The objective on a batch."""

    def evaluate(self, batch: Batch) -> Terms:
        """The objective on a batch, outside training."""
        return self.forward(batch)

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradient."""

    def accumulating(self) -> AbstractContextManager:
        """Context of a pass after which no optimiser step follows, so that gradients need not be exchanged yet."""
        return nullcontext()

    @abstractmethod
    def clip(self, optimizer: Optimizer, max_norm: float) -> None:
        """Shorten the gradient to a norm."""

    def total(self, values: list[float]) -> list[float]:
        """Sums over the processes."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes."""
        return [value]

    def from_first(self, value: Any) -> Any:
        """The first process's value."""
        return value

    def on_first(self, action: Callable[[], Any]) -> None:
        """Do something in the first process; all processes learn of a failure."""
        if self.world == 1:
            action()
            return
        problem = None
        if self.rank == 0:
            try:
                action()
            except OutputError as error:
                problem = str(error)
        problem = self.from_first(problem)
        if problem is not None:
            raise OutputError(problem)

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Whole states of the objective and the optimiser."""
        return self.elbo.state_dict(), optimizer.state_dict()

    def load_states(self, optimizer: Optimizer | None, elbo: dict[str, Any], optimizer_state: dict[str, Any]) -> None:
        """The inverse of `states`; without an optimiser the objective's state alone."""
        # A plain network's weights would load into one that was converted, and into each member of an ensemble.
        if other := elbo.keys() ^ self.elbo.state_dict().keys():
            raise ValueError(f"only one of them has {min(other)}")
        self.elbo.load_state_dict(elbo)
        if optimizer is not None:
            # How steps are computed belongs to this run and its device, not to the one that wrote the checkpoint.
            own = [{name: group[name] for name in _OWN if name in group} for group in optimizer.param_groups]
            optimizer.load_state_dict(optimizer_state)
            for group, settings in zip(optimizer.param_groups, own):
                group.update(settings)


class OneProcess(Runtime):
    """One process on the CPU or one GPU: plain torch, which spares every step a wrapper."""

    def __init__(self, config: TrainConfig) -> None:
        self.device = choose_device(config.device)

    def setup(self, elbo: ELBO, execution: Execution) -> None:
        """See `Runtime`."""
        self.elbo = elbo.to(self.device)
        self.autocast = execution.precision == "bf16-mixed"
        with torch.no_grad():
            kl(elbo.model)  # what it keeps on the device must be there before anything is compiled or recorded
        self.module: nn.Module = compiled_as_set(elbo, execution.compile)
        self.must = execution.must
        self.size: int | None = None

    @property
    def compiled(self) -> bool:
        """See `Runtime`."""
        return self.module is not self.elbo

    def forward(self, batch: Batch) -> Terms:
        """See `Runtime`."""
        self.size = batch.rows if self.size is None else self.size
        # The last batch of an epoch may be smaller: compiling for it would take longer than all such steps.
        module = self.module if batch.rows == self.size else self.elbo
        try:
            with self._autocast():
                return module(batch.x, batch.y, weights=batch.weights)
        except Exception as error:
            if self.must or not is_compile_error(error):
                raise
            _LOG.warning("this model cannot be compiled and trains uncompiled: %s", first_line(error))
        self.module = self.elbo
        return self.forward(batch)

    def evaluate(self, batch: Batch) -> Terms:
        """See `Runtime`."""
        # Not compiled: that would take longer than the evaluations of most trainings.
        with self._autocast():
            return self.elbo(batch.x, batch.y, weights=batch.weights)

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """See `Runtime`."""
        loss.backward()

    def clip(self, optimizer: Optimizer, max_norm: float) -> None:
        """See `Runtime`."""
        nn.utils.clip_grad_norm_(self.elbo.parameters(), max_norm)


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("TrainConfig(device='cuda') needs a GPU, and torch finds none; use device='cpu'")
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def compiled_as_set(module: Any, setting: bool | str) -> Any:
    """The module, compiled where `TrainConfig.compile` says so."""
    return compiled(module, setting if isinstance(setting, str) else None) if setting else module
