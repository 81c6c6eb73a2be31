"""LitELBO: training by Lightning's Trainer."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.objectives.elbo import ELBO
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training.config import TrainConfig
from leanbayes.training.evaluate import evaluating, score
from leanbayes.training.loader import unpack
from leanbayes.training.optimizers import make_optimizer
from leanbayes.training.parts import check_not_held_out
from leanbayes.training.schedules import kl_weight, learning_rate


class ELBOSteps:
    """A LightningModule around the ELBO of a model; `leanbayes.training.LitELBO` joins it with Lightning's class.

    The Trainer decides epochs, devices, precision, clipping, accumulation and checkpoints; the configuration supplies
    the optimiser, the schedules and the objective's settings. Batches have the form that `fit` takes from loaders. Logs
    ``loss``, ``nll`` and ``kl``, and for validation data ``valid_nll`` and ``valid_accuracy``.

    Args:
        model: A converted model or a plain one.
        dataset_size: Number of training examples over all processes.
        config: Optimiser, schedules and objective.
        likelihood: How outputs explain targets; None means classes.
        steps_per_epoch: Optimiser steps of an epoch, the unit of warm-up, schedules and annealing; required if you use
            any of them.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset_size: int,
        config: TrainConfig | None = None,
        likelihood: Likelihood | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.config = TrainConfig() if config is None else config
        timed = self.config.schedule != "constant" or self.config.warmup or self.config.anneal
        if timed and steps_per_epoch is None:
            raise ValueError("schedule, warmup and anneal need steps_per_epoch, the optimiser steps of an epoch")
        self.steps_per_epoch = steps_per_epoch or 0
        weight = kl_weight(self.config, self.steps_per_epoch)
        self.elbo = ELBO(
            model,
            dataset_size,
            likelihood,
            # A plain number spares the objective from reading its step count off the device.
            kl_weight=weight.weight if weight.anneal is None else weight,
            components=self.config.components,  # pyright: ignore[reportArgumentType]
            tile=self.config.tile,
            samples=self.config.samples,
            mixture=self.config.mixture,  # pyright: ignore[reportArgumentType]
        )
        check_not_held_out("LitELBO", self.elbo.likelihood)

    def forward(self, x: Any) -> Any:
        """One draw of the model."""
        return self.elbo.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch; logs it with its parts."""
        x, y, weights = unpack(batch)
        terms = self.elbo(x, y, weights=weights)
        self._note({"loss": terms.loss, "nll": terms.nll, "kl": terms.kl}, len(y))
        return terms.loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the predictive NLL and, for class labels, the accuracy."""
        x, y, weights = unpack(batch)
        with evaluating(self.elbo, self.config.valid_samples):
            outputs = self.elbo(x, y).outputs
        nll, count, *right = score(self.elbo.likelihood, outputs, y, weights)
        total = count.clamp_min(torch.finfo(count.dtype).tiny)  # all weights of a batch may be 0
        means = {"valid_nll": nll / total} | ({"valid_accuracy": right[0] / total} if right else {})
        self._note(means, float(count))  # each batch counts by its weights

    def configure_optimizers(self) -> Any:
        """The configuration's optimiser and learning-rate schedule, stepped with the optimiser."""
        optimizer = make_optimizer(self.elbo, self.config)
        if self.config.schedule == "constant" and not self.config.warmup:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate(self.config, self.steps_per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _note(self, values: dict[str, Tensor], count: float) -> None:
        module: Any = self
        module.log_dict({name: value.float() for name, value in values.items()}, batch_size=count, sync_dist=True)


@cache
def lit_elbo() -> type:
    """The class `LitELBO`; made when it is first asked for, since importing Lightning takes seconds."""
    names = ("lightning.pytorch", "pytorch_lightning")
    # The name that is in use: a Trainer takes no module of the other.
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            base = import_module(name).LightningModule
        except ImportError:
            continue
        about = {"__module__": "leanbayes.training", "__doc__": ELBOSteps.__doc__}
        return type("LitELBO", (ELBOSteps, base), about)
    raise ImportError("LitELBO needs Lightning: pip install 'leanbayes[train]'")
