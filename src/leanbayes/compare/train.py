"""Training of one method under the budget that all of them share."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import SeededRandom
from leanbayes.compare.networks import build_network, takes_small_resnet
from leanbayes.compare.noise import fit_noise
from leanbayes.compare.presets import Preset
from leanbayes.compare.seen import identity
from leanbayes.data import Dataset, Schema
from leanbayes.data._split import FEWEST_ROWS, held_out_count
from leanbayes.data.augment import Augmentation, standard
from leanbayes.models import TabularMLP
from leanbayes.objectives import Categorical, Gaussian
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training import History, TrainConfig, fit
from leanbayes.training.holdout import divide_examples, join
from leanbayes.training.runtime import choose_device

# Optimiser steps of the named budgets, and the most epochs that they may take.
_STEPS = {"fast": (1640, 200), "normal": (8000, 1000)}
# Residual networks: the usual settings of SGD for small images, and what its learning rate is over that of AdamW.
_SGD_BATCH, _SGD_RATE, _SGD_DECAY, _SGD_OVER_ADAMW = 256, 0.1, 5e-4, 50
_WARMUP = 0.05
_SMALL_DATA = 5000
_CHECKPOINTS = 10
# Evaluations of the validation part over the whole training, and how many may bring nothing better.
_EVALUATIONS, PATIENCE = 40, 20


@dataclass(frozen=True)
class Budget:
    """What every method may spend: the same passes over the same batches.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Examples of an optimiser step.
        lr: Learning rate at the start; it falls to 0 along a cosine.
        weight_decay: Decoupled weight decay of what has no prior.
        patience: Evaluations, of which there are up to 40, without a better NLL of the validation part after which
            training stops; None for never.
        restore_best: End with the weights of the best evaluation instead of the last.
        refit: Afterwards train again on training and validation part together, for as many steps.
        thorough: For images of 16 to 64 pixels: a residual network instead of LeNet-5, trained by SGD with Nesterov's
            momentum after a short warm-up, in bfloat16 on a GPU.
        decay_kl: Weight of the KL of methods for which that is a weight decay; that of the preset where None.
    """

    epochs: int
    batch_size: int = 64
    lr: float = 2e-3
    weight_decay: float = 1e-4
    patience: int | None = PATIENCE
    restore_best: bool = True
    refit: bool = False
    thorough: bool = False
    decay_kl: float | None = None

    @classmethod
    def of(
        cls, value: str | int | Budget, examples: int, batch_size: int | None = None, schema: Schema | None = None
    ) -> Budget:
        """A budget from "fast" (about 1640 optimiser steps, at most 200 epochs), "normal" (8000, 1000) or epochs.

        With the schema of images of 16 to 64 pixels, "normal" is thorough, and goes through all its steps.

        Example:
            >>> Budget.of("fast", 1294).epochs, Budget.of(3, 1294).epochs
            (40, 3)
        """
        if isinstance(value, Budget):
            return value
        thorough = value == "normal" and schema is not None and takes_small_resnet(schema)
        size = batch_size or (32 if examples < _SMALL_DATA else _SGD_BATCH if thorough else 128)
        if isinstance(value, str) and value not in _STEPS:
            if not value.isdecimal():
                raise ValueError(f"budget is {', '.join(_STEPS)} or a number of epochs, not {value!r}")
            value = int(value)
        if isinstance(value, str):
            steps, most = _STEPS[value]
            value = max(1, min(most, round(steps / math.ceil(examples / size))))
        if isinstance(value, bool) or value < 1:
            raise ValueError(f"budget needs at least one epoch, not {value!r}")
        if thorough:
            rate = _SGD_RATE * size / _SGD_BATCH
            decay_kl = _SGD_DECAY * examples  # the KL of a standard normal prior is |w|^2 / 2, shared by all examples
            return cls(value, size, rate, _SGD_DECAY, patience=None, thorough=True, decay_kl=decay_kl)
        return cls(epochs=value, batch_size=size)

    def kl_weight(self, preset: Preset) -> float:
        """Weight of the KL of a method."""
        return self.decay_kl if preset.decays and self.decay_kl is not None else preset.kl_weight

    def config(self, preset: Preset, seed: int, device: str) -> TrainConfig:
        """The settings of `fit` for one method."""
        sgd = self.thorough and not preset.adaptive
        on_gpu = choose_device(device).type == "cuda"
        settings: dict[str, Any] = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": self.lr / _SGD_OVER_ADAMW if self.thorough and preset.adaptive else self.lr,
            "weight_decay": self.weight_decay,
            "optimizer": "sgd" if sgd else "adamw",
            "nesterov": sgd,
            "schedule": "cosine",
            "warmup": _WARMUP * self.epochs if self.thorough else 0.0,
            "precision": "bf16-mixed" if self.thorough and on_gpu else "auto",
            "kl_weight": self.kl_weight(preset),
            "anneal": preset.anneal * self.epochs,
            "valid_every": max(1, self.epochs // _EVALUATIONS),
            "checkpoint_every": max(1, self.epochs // _CHECKPOINTS),
            "valid_samples": 4,
            "hold_out": 0,  # the data set has its own parts
            "patience": self.patience,
            "restore_best": self.restore_best,
            "refit": self.refit,
            "device": device,
            "seed": seed,
        }
        return TrainConfig(**settings | preset.train)


def make_likelihood(dataset: Dataset, heteroscedastic: bool = False, held_out: bool = False) -> Likelihood:
    """Classes, or real targets with noise, which starts as large as their spread.

    Args:
        dataset: The data.
        heteroscedastic: Whether the network predicts the noise of each row.
        held_out: Whether the noise is fitted to rows that are not trained on.
    """
    if dataset.task == "regression":
        return Gaussian(None if heteroscedastic else 1.0, held_out=held_out)
    if heteroscedastic:
        raise ValueError(f"heteroscedastic noise is for real targets, but {dataset.name} has classes; leave it out")
    return Categorical()


def make_model(
    dataset: Dataset,
    preset: Preset,
    seed: int,
    network: str | None = None,
    hidden: Sequence[int] | None = None,
    heteroscedastic: bool = False,
    thorough: bool = False,
) -> nn.Module:
    """A network with fresh weights and this method's distributions; the same for the same seed.

    A network for tables has its bins at the quantiles of the training rows.
    """
    with SeededRandom(seed):
        plain = build_network(
            dataset.schema, network, hidden, 2 if heteroscedastic else None, len(dataset.train), thorough
        )
        if isinstance(plain, TabularMLP):
            plain.fit_bins_(dataset.ready("train")[0])
        return preset.convert(plain)


def choose_augmentation(dataset: Dataset, wanted: bool | None = None) -> Augmentation | None:
    """Random crops and flips of the training images, the same for every method.

    Args:
        dataset: The data.
        wanted: Whether to change images; None does so with colour images, which are as good mirrored and moved, and
            leaves grey ones such as digits alone.

    Returns:
        The augmentation, None for none.
    """
    images = dataset.inputs == "image"
    if wanted and not images:
        raise ValueError(f"augment=True crops and flips images, but {dataset.name} has none; leave it out")
    colour = images and dataset.shape[0] == 3
    return standard(dataset.shape) if (colour if wanted is None else wanted) else None


def train(
    model: nn.Module,
    dataset: Dataset,
    config: TrainConfig,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    likelihood: Likelihood | None = None,
    augment: Augmentation | None = None,
    heteroscedastic: bool = False,
) -> tuple[Likelihood, History]:
    """Train a model on a data set, and stop when the validation part is explained no better.

    A table's validation part that is too small to stop on gets some of the training rows. Below 20 rows training goes
    through all epochs, and the noise of a regression comes from the training rows.

    Args:
        model: A converted model or a plain one; trained in place.
        dataset: The data.
        config: How to train.
        out: Folder for checkpoints and logs, see `fit`.
        resume: Go on from the folder's last checkpoint; one of other rows is refused.
        progress: Whether to show a progress bar; None shows it on a terminal.
        likelihood: How outputs explain targets; where None that of the task, with a noise that is fitted, too.
        augment: Random changes to the scaled inputs of a training batch.
        heteroscedastic: Whether the network predicts the noise of each row.

    Returns:
        The likelihood, with the noise that was fitted, and what happened.
    """
    callbacks = []
    data = _parts(dataset, config)
    if data["valid"] is None:
        config = replace(config, patience=None, restore_best=False, refit=False)
    if likelihood is None:
        likelihood = make_likelihood(dataset, heteroscedastic, held_out=data["valid"] is not None)
        callbacks = [fit_noise(likelihood)] if isinstance(likelihood, Gaussian) and not heteroscedastic else []
    history = fit(
        model,
        data,
        config,
        out=out,
        resume=resume,
        callbacks=callbacks,
        likelihood=likelihood,
        augment=augment,
        progress=progress,
        identity=None if out is None else identity(dataset),
    )
    return likelihood.to(next(model.parameters()).device), history


def _parts(dataset: Dataset, config: TrainConfig) -> dict[str, Any]:
    """What to train on, and what to stop on, None where there are too few rows."""
    train = _examples(dataset, "train", config)
    rows = len(dataset.train) + len(dataset.valid)
    if rows < FEWEST_ROWS or not len(dataset.valid):
        return {"train": train, "valid": None}
    valid = _examples(dataset, "valid", config)
    lacking = _lacking(dataset)
    if lacking and isinstance(train, tuple) and isinstance(valid, tuple):
        train, more = divide_examples(train, lacking, config.seed)
        assert more is not None
        valid = join(valid, more)
    return {"train": train, "valid": valid}


def train_and_valid_counts(dataset: Dataset) -> tuple[int, int]:
    """How many examples a network learns from, and how many tell it when to stop."""
    lacking = _lacking(dataset)
    return len(dataset.train) - lacking, len(dataset.valid) + lacking


def _lacking(dataset: Dataset) -> int:
    """How many training rows go to a validation part that is too small to stop on."""
    rows = len(dataset.train) + len(dataset.valid)
    in_memory = all(isinstance(part.x, Tensor) for part in (dataset.train, dataset.valid))
    # Single rows of a group would be in both parts; its reader holds out enough groups.
    grouped = dataset.valid.groups is not None
    if rows < FEWEST_ROWS or not len(dataset.valid) or not in_memory or grouped:
        return 0
    return max(0, held_out_count(rows) - len(dataset.valid))


def _examples(dataset: Dataset, name: Any, config: TrainConfig) -> Any:
    """Tensors where the inputs are in memory, with the weights of their classes, else batches read as needed."""
    if isinstance(dataset.part(name).x, Tensor):
        x, y = dataset.ready(name)
        return x, y, torch.tensor(dataset.class_weights)[y] if dataset.class_weights else None
    if dataset.class_weights:
        raise ValueError(f"class weights need examples in memory, and those of {dataset.name} are read as needed")
    return dataset.batches(name, config.batch_size, shuffle=name == "train", seed=config.seed)
