"""LitELBO: training by Lightning's Trainer."""

from __future__ import annotations

import sys
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
from leanbayes.training.schedules import kl_weight, learning_rate


def _lightning() -> Any:
    """Lightning under the name that is in use: a Trainer takes no module of the other."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("LitELBO needs Lightning: pip install leanbayes[train]")


class LitELBO(_lightning().LightningModule):
    """A LightningModule around the ELBO of a model.

    The Trainer decides epochs, devices, precision, clipping, accumulation and checkpoints; of the configuration the
    optimiser, the schedules and the objective's settings are used. Batches are as `fit` takes them from loaders.

    Args:
        model: A converted model or a plain one.
        dataset_size: Number of training examples over all processes.
        config: Optimiser, schedules and objective.
        likelihood: How outputs explain targets, classes where None.
        steps_per_epoch: Optimiser steps of an epoch, in which warm-up and annealing are counted; needed for them.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import LitELBO, TrainConfig
        >>> model = lb.bayesianize(torch.nn.Linear(2, 2), lb.MeanField())
        >>> module = LitELBO(model, dataset_size=64, config=TrainConfig(lr=0.05))
        >>> module.training_step((torch.randn(8, 2), torch.randint(2, (8,))), 0).shape
        torch.Size([])
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
            bn=self.config.bn,  # pyright: ignore[reportArgumentType]
        )

    def forward(self, x: Any) -> Any:
        """One draw of the model."""
        return self.elbo.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch; logs it with its parts."""
        x, y, weights = unpack(batch)
        terms = self.elbo(x, y, weights=weights)
        if self._trainer is not None:
            self.log_dict({"loss": terms.loss, "nll": terms.nll, "kl": terms.kl}, batch_size=y.shape[0])
        return terms.loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Logs the predictive NLL and, for class labels, the accuracy."""
        x, y, weights = unpack(batch)
        with evaluating(self.elbo, self.config.valid_samples):
            outputs = self.elbo(x, y).outputs
        nll, count, *right = score(self.elbo.likelihood, outputs, y, weights).tolist()
        values = {"valid_nll": nll / count} | ({"valid_accuracy": right[0] / count} if right else {})
        self.log_dict(values, batch_size=y.shape[0], sync_dist=True)

    def configure_optimizers(self) -> Any:
        """The configuration's optimiser and learning-rate schedule, stepped with the optimiser."""
        optimizer = make_optimizer(self.elbo, self.config)
        if self.config.schedule == "constant" and not self.config.warmup:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate(self.config, self.steps_per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
