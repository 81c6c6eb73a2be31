"""Training in turns: what a method has added, then what it was added to."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from leanbayes.convert import param_groups
from leanbayes.training.callbacks import EpochEnd


class Alternate:
    """A callback of `fit` that trains patches and shared weights in turn (Ensemble Model Patching, appendix C.2).

    While one half trains, the other keeps every bit. Running statistics of norms are updated in both phases. Trains in
    one process.

    Args:
        patches: Epochs of each phase that trains what the method has added: patches, factors, deviations.
        shared: Epochs of each phase that trains everything else.
        first: "patches" or "shared".

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import Alternate, TrainConfig, fit
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        >>> model = lb.bayesianize(net, lb.EMP())
        >>> x, y = torch.randn(32, 2), torch.randint(2, (32,))
        >>> history = fit(model, (x, y), TrainConfig(epochs=4), callbacks=[Alternate()])
        >>> [record["trains"] for record in history.records]
        ['patches', 'shared', 'patches', 'shared']
    """

    def __init__(self, patches: int = 1, shared: int = 1, first: str = "patches") -> None:
        for name, value in (("patches", patches), ("shared", shared)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Alternate({name}=...) takes a number of epochs from 1 on, not {value!r}")
        if first not in ("patches", "shared"):
            raise ValueError(f"Alternate(first=...) takes 'patches' or 'shared', not {first!r}")
        self.epochs = {"patches": patches, "shared": shared}
        self.first = first
        self.parts: dict[str, list[nn.Parameter]] = {}

    def begin(self, model: nn.Module, epochs: int) -> None:
        """Begin the phase due after that many epochs; `fit` calls it once its optimiser knows all parameters."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError(
                "Alternate trains in one process: several wait for gradients of all parameters, and one half has none"
            )
        groups = {group["name"]: group["params"] for group in param_groups(model, 1.0)}
        self.parts = {
            "patches": groups.pop("variational", []),
            "shared": [parameter for group in groups.values() for parameter in group],
        }
        for name, parameters in self.parts.items():
            if not parameters:
                raise ValueError(f"the model has no {name} to train in turn; convert it, without freeze=True")
        self._train(self.phase(epochs))

    def phase(self, epochs: int) -> str:
        """What trains after that many epochs."""
        second = "shared" if self.first == "patches" else "patches"
        place = epochs % sum(self.epochs.values())
        return self.first if place < self.epochs[self.first] else second

    def __call__(self, event: EpochEnd) -> None:
        """Note what the epoch has trained, and begin the next phase."""
        epoch = event.record["epoch"]
        event.record["trains"] = self.phase(epoch - 1)
        self._train(self.phase(epoch))

    def end(self) -> None:
        """Make everything trainable again."""
        for parameters in self.parts.values():
            for parameter in parameters:
                parameter.requires_grad_(True)

    def _train(self, name: str) -> None:
        for part, parameters in self.parts.items():
            for parameter in parameters:
                parameter.requires_grad_(part == name)
                parameter.grad = None
