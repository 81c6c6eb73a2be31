"""How recipes train: as the papers do, and in legs that end between two epochs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes.compare.checkpoint import read_json, write_json
from leanbayes.nn._base import Converted
from leanbayes.reproduce.leg import Leg, LegOver
from leanbayes.training import EpochEnd, TrainConfig
from leanbayes.training.data import Augment
from leanbayes.training.errors import OutputError
from leanbayes.training.files import prepare_folder

_CONFIG = "config.json"
_EXAMPLES = "examples"
_METHODS = "methods"
# Of a configuration, what does not decide which model comes out.
_FREE = frozenset(
    {"device", "compile", "cuda_graph", "checkpoint_every", "checkpoint_steps", "log_every", "tensorboard"}
    | {"hold_out", "patience", "restore_best", "refit"}  # as below, or as the recipe asks each time
)
# What a recipe leaves open: the papers train on all rows, for all epochs.
_AS_PUBLISHED: dict[str, Any] = {"hold_out": 0, "patience": None, "restore_best": False, "valid_samples": 1}
_DEFAULTS = TrainConfig()


def published(config: TrainConfig) -> dict[str, Any]:
    """How the papers train, where a recipe asks for nothing else."""
    return {name: value for name, value in _AS_PUBLISHED.items() if getattr(config, name) == getattr(_DEFAULTS, name)}


def check_same(folder: Path, config: dict[str, Any], model: nn.Module, examples: str | None) -> None:
    """Note how, by which methods and on what a training is done; one that was started otherwise is refused."""
    path = folder / _CONFIG
    wanted = {name: value for name, value in config.items() if name not in _FREE} | {_METHODS: _methods(model)}
    before = read_json(path)
    if before is None:
        prepare_folder(folder)
        write_json(path, wanted | {_EXAMPLES: examples})
        return
    changed = [name for name, value in wanted.items() if before.get(name) != value]
    if changed:
        name = changed[0]
        raise OutputError(
            f"the training in {folder} was started with {name}={before.get(name)!r}, not {wanted[name]!r}; "
            "use the same settings or another --work folder"
        )
    # Of loaders nothing is known.
    if None not in (examples, before[_EXAMPLES]) and before[_EXAMPLES] != examples:
        raise OutputError(
            f"the training in {folder} was started on different data; pass the same folder with --data, or "
            "another --work folder"
        )


def _methods(model: nn.Module) -> list[str]:
    """The methods in a model with their settings and priors, each once."""
    found = (repr(module.method) for module in model.modules() if isinstance(module, Converted))
    return list(dict.fromkeys(found))


class Stop:
    """Ends a training between two epochs, when the checkpoint of the first is on the disk.

    Callbacks come before the checkpoint is written. The next thing that `fit` calls is the augmentation of the next
    epoch's first batch.
    """

    def __init__(self, leg: Leg, recipe: str, every: int, augment: Augment | None) -> None:
        self.leg = leg
        self.recipe = recipe
        self.every = every
        self.wanted = augment
        self.over = leg.is_over()
        self.began = time.monotonic()

    def after_epoch(self, event: EpochEnd) -> None:
        """A callback: the leg is over where it has no time for another stretch up to a checkpoint like the last."""
        self.leg.worked = True
        if event.record["epoch"] % self.every == 0:
            now = time.monotonic()
            self.over = self.leg.is_over(ahead_s=now - self.began)
            self.began = now

    def augment(self, x: Any, generator: torch.Generator) -> Any:
        """An augmentation: that which was asked for."""
        if self.over:
            raise LegOver(f"the time of this leg ended in {self.recipe}")
        return x if self.wanted is None else self.wanted(x, generator)
