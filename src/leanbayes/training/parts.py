"""What a training is made of: its data, in batches, and its objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.objectives.elbo import ELBO
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import (
    Augment,
    Place,
    Source,
    TensorSource,
    as_tensors,
    check_examples,
    split_data,
)
from leanbayes.training.holdout import divide_examples, join
from leanbayes.training.loader import LoaderSource
from leanbayes.training.runtime import Runtime


@dataclass(frozen=True)
class Parts:
    """Training and validation data, the latter held out of the former where none was given."""

    train: Any
    valid: Any

    @classmethod
    def of(cls, data: Any, config: TrainConfig) -> Parts:
        """The parts of what `fit` takes."""
        train, valid = split_data(data)
        if valid is not None or config.hold_out == 0:
            return cls(train, valid)
        examples = as_tensors(train)
        if examples is None:
            if config.hold_out != "auto" and train is not None:
                raise ValueError(
                    f"hold_out={config.hold_out!r} takes rows of data in memory, not of a {type(train).__name__}; pass "
                    "validation data instead: {'train': ..., 'valid': ...}"
                )
            return cls(train, None)
        check_examples(*examples)
        return cls(*divide_examples(examples, config.hold_out, config.seed))

    def check_refit(self, world: int) -> None:
        """Raise, before anything is trained, where a refit on all rows is not possible."""
        if world > 1:
            raise ValueError("refit=True trains in one process, but there are several; leave it out")
        if as_tensors(self.train) is None or as_tensors(self.valid) is None:
            raise ValueError(
                "refit=True trains on the rows for training and validation together: it needs both, as tensors and not "
                "as loaders"
            )

    def joined(self) -> Any:
        """All rows together."""
        train, valid = as_tensors(self.train), as_tensors(self.valid)
        assert train is not None and valid is not None  # see `check_refit`
        return join(train, valid)


def make_source(
    part: Any,
    place: Place,
    *,
    batch_size: int,
    seed: int,
    training: bool,
    drop_last: bool = False,
    augment: Augment | None = None,
) -> Source:
    """Batches of a part: of tensors, a DataLoader, or any iterable of batches."""
    found = as_tensors(part)
    if found is not None:
        return TensorSource(
            *found,
            place=place,
            batch_size=batch_size,
            seed=seed,
            training=training,
            drop_last=drop_last,
            augment=augment,
        )
    if isinstance(part, Iterable) and not isinstance(part, (str, bytes, Mapping, Tensor)):
        return LoaderSource(part, place=place, seed=seed, training=training, augment=augment)
    raise TypeError(
        f"fit takes tensors (x, y), an object with x and y, one with train and valid, or a DataLoader, not "
        f"{'nothing' if part is None else type(part).__name__}"
    )


def make_sources(
    parts: Parts, config: TrainConfig, runtime: Runtime, augment: Augment | None
) -> tuple[Source, Source | None]:
    """Batches for training, and those for validation where there are any."""
    valid = parts.valid
    place = Place(runtime.device, runtime.rank, runtime.world)
    source = make_source(
        parts.train,
        place,
        batch_size=config.batch_size,
        seed=config.seed,
        training=True,
        drop_last=config.drop_last,
        augment=augment,
    )
    if valid is None:
        watching = watches(config)
        if watching and config.monitor.startswith("valid"):
            raise ValueError(f"{watching} watches {config.monitor}, which needs validation data: data.valid")
        return source, None
    return source, make_source(valid, place, batch_size=config.batch_size, seed=config.seed, training=False)


def watches(config: TrainConfig) -> str | None:
    """The setting that needs the value of `monitor`, None where none does."""
    if config.patience not in (None, "auto"):
        return "patience"
    return "restore_best" if config.restore_best is True else "refit" if config.refit else None


def check_held_out(likelihood: Likelihood, valid: Source | None, config: TrainConfig) -> None:
    """Raise where a likelihood that is fitted to validation data has none."""
    if likelihood.fits_held_out and valid is None:
        raise ValueError(
            f"{type(likelihood).__name__}(held_out=True) is fitted to validation data, and there is none; pass some, "
            "or 20 rows or more with hold_out='auto', or leave held_out out"
        )


def check_not_held_out(owner: str, likelihood: Likelihood) -> None:
    """Raise where a trainer that fits nothing to held-out rows is given a likelihood that waits for it."""
    if likelihood.fits_held_out:
        raise ValueError(f"{owner} holds no rows out, to which held_out=True fits the noise; leave it out, or use fit")


def check_targets(likelihood: Likelihood, sources: Iterable[Source | None], output_shape: torch.Size) -> None:
    """Look at all targets once, now that the outputs' shape is known; a GPU checks no later batch."""
    for source in sources:
        if isinstance(source, TensorSource):
            outputs = torch.empty((1, source.y.shape[0], *output_shape), device="meta")
            likelihood.check(outputs, source.y)


def steps_per_epoch(source: Source, config: TrainConfig) -> int | None:
    """Optimiser steps of an epoch, None where the data does not say."""
    if source.batches is not None:
        return -(-source.batches // config.accumulate)
    if config.schedule != "constant" or config.warmup or config.anneal:
        raise ValueError("schedule, warmup and anneal need to know the length of an epoch; pass data that has a len()")
    return None


def make_elbo(
    model: nn.Module, train: Source, config: TrainConfig, likelihood: Likelihood | None, weight: float
) -> ELBO:
    """The objective, with the number of examples that the data or the configuration says."""
    size = train.examples if config.dataset_size is None else config.dataset_size
    if size is None:
        raise ValueError("the data does not say how many examples it has; set TrainConfig(dataset_size=...)")
    return ELBO(
        model,
        size,
        likelihood,
        kl_weight=weight,
        components=config.components,  # pyright: ignore[reportArgumentType]
        tile=config.tile,
        samples=config.samples,
        mixture=config.mixture,  # pyright: ignore[reportArgumentType]
    )
