"""Batches of a DataLoader or of any other iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from leanbayes._inputs import rows
from leanbayes._rows import map_rows
from leanbayes._sampling import SeededRandom, current_sampling
from leanbayes.training.data import Augment, Batch, Place, Source, keeps_state, without_repetitions
from leanbayes.training.seeds import derive

_LABEL_KEYS = ("labels", "label")
# Samplers that draw from torch's generators alone, so that all processes can draw the same and take their share.
_SHAREABLE = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class LoaderSource(Source):
    """Batches ``(x, y)``, ``(x, y, weights)`` or mappings with "labels", from a DataLoader or any iterable.

    Every epoch starts from a seed of its own, also in a generator that the loader or its sampler holds, so that the
    order does not depend on what ran before. A resumed epoch draws and drops the batches that were done, unless the
    iterable has `state_dict` and `load_state_dict` and so can go to the place itself. With several processes, what a
    DataLoader's sampler chooses is shared out, and what its dataset draws, such as random changes to an image, differs
    between the processes; other iterables, and iterable datasets, must share out by themselves.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        place: Place,
        seed: int = 0,
        training: bool = True,
        augment: Augment | None = None,
    ) -> None:
        self.examples = _examples(loader)
        if place.world > 1 and isinstance(loader, DataLoader):
            loader = _shared_out(loader, place, training)
        self.loader = loader
        self.place = place
        self.seed = seed
        self.augment = augment
        self.batches = _length(loader)
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        self._repeats = sampler if isinstance(sampler, _Share) and sampler.repeats else None
        self._generator = torch.Generator(place.device) if augment is not None else None
        self._resumed = False

    def begin(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `Source`."""
        if self._resumed:
            self._resumed = False
            return self._prepare(iter(self.loader), epoch, start)
        order, own = derive(self.seed, "order", epoch), self._own_seed(epoch)
        for part in _parts(self.loader):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)  # pyright: ignore
            if isinstance(part, _Share):
                part.seed = order
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                # A loader draws its workers' seeds from its generator, a sampler the order.
                generator.manual_seed(own if part is self.loader else order)
        # Samplers draw their seed when the first batch is asked for.
        with SeededRandom(own):
            items = _Started(self.loader)
        for _ in range(start):
            next(items, None)
        return self._prepare(items, epoch, start)

    def _own_seed(self, epoch: int) -> int:
        """Seed of what a loader draws as an epoch begins: the seeds of its workers, or its first batch.

        A process of several has its own, except where what is drawn may be the order that the processes share: by an
        iterable, or by an iterable dataset in this process.
        """
        loader = self.loader
        if self.place.world == 1 or not isinstance(loader, DataLoader):
            return derive(self.seed, "order", epoch)
        if isinstance(loader.dataset, IterableDataset) and not loader.num_workers:
            return derive(self.seed, "order", epoch)
        return derive(self.seed, "loader", epoch, self.place.rank)

    def state(self) -> Any:
        """See `Source`."""
        return self.loader.state_dict() if keeps_state(self.loader) else None  # pyright: ignore

    def load_state(self, state: Any) -> None:
        """See `Source`."""
        if state is not None and keeps_state(self.loader):
            self.loader.load_state_dict(state)  # pyright: ignore
            self._resumed = True

    def _prepare(self, items: Iterator[Any], epoch: int, start: int) -> Iterator[Batch]:
        for number, item in enumerate(items, start):
            x, y, weights = unpack(item)
            x = map_rows(x, self._move)
            if self.augment is not None:
                assert self._generator is not None
                self._generator.manual_seed(derive(self.seed, "augment", epoch, number, self.place.rank))
                x = self.augment(x, self._generator)
            weights = None if weights is None else self._move(weights)
            count = rows(x, current_sampling().batch_dim)
            if self._repeats is not None:
                weights = self._repeats.left_out(weights, number, count)
            yield Batch(x, self._move(y), weights, count)

    def _move(self, t: Tensor) -> Tensor:
        return t.to(self.place.device, non_blocking=True)


class _Started:
    """An iterator whose first item has been drawn."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = iter(items)
        self.first = list(_at_most_one(self.items))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.first.pop() if self.first else next(self.items)


def _at_most_one(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        return


def unpack(item: Any) -> tuple[Any, Tensor, Tensor | None]:
    """Inputs, targets and weights of one item of a loader."""
    if isinstance(item, Mapping):
        for key in _LABEL_KEYS:
            if key in item:
                return {name: value for name, value in item.items() if name != key}, item[key], None
    elif isinstance(item, (tuple, list)) and len(item) in (2, 3) and isinstance(item[1], Tensor):
        return item[0], item[1], item[2] if len(item) == 3 else None
    raise TypeError(
        f"a batch is (x, y), (x, y, weights) or a mapping with 'labels', not {type(item).__name__}"
        + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")
    )


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:
        return None


def _parts(loader: Any) -> Iterator[Any]:
    """A loader, its samplers, and the samplers within those."""
    if loader is not None:
        yield loader
        for name in ("sampler", "batch_sampler"):
            yield from _parts(getattr(loader, name, None))


def _examples(loader: Any) -> int | None:
    """Examples of one epoch over all processes, None where that is not known."""
    if hasattr(loader, "rows"):
        return loader.rows  # `leanbayes.data.Batches` counts them itself
    dataset = getattr(loader, "dataset", None)
    if not isinstance(loader, DataLoader) or isinstance(dataset, IterableDataset):
        return _length(dataset)
    sampler = _sampler(loader)
    if isinstance(sampler, DistributedSampler):
        return _length(sampler.dataset)
    # What an epoch shows is what the likelihood's sum runs over. It may be a part of the dataset, or, where examples
    # are drawn with weights, more than there are: each draw counts.
    return _length(sampler)


def _sampler(loader: DataLoader) -> Any:
    """What chooses a loader's examples one by one, None where whole batches are chosen."""
    if loader.batch_size is not None:
        return loader.sampler
    return getattr(loader.sampler if loader.batch_sampler is None else loader.batch_sampler, "sampler", None)


class _Share(Sampler[int]):
    """This process's share of what a sampler chooses, as many for every process.

    In training, what is left over is left out; in an evaluation, the first ones are repeated, and do not count again.

    Args:
        sampler: What chooses.
        place: Of this process.
        training: Whether it is for training.
        size: Examples of a batch of this process.

    Attributes:
        seed: Of the choice, the same in all processes.
    """

    seed = 0

    def __init__(self, sampler: Any, place: Place, training: bool, size: int) -> None:
        self.sampler = sampler
        self.place = place
        self.training = training
        self.size = size

    @property
    def repeats(self) -> bool:
        """Whether examples are repeated."""
        return len(self) * self.place.world > len(self.sampler)

    def left_out(self, weights: Tensor | None, number: int, count: int) -> Tensor | None:
        """The weights of a batch of so many examples, 0 for what is repeated."""
        start = number * self.size
        if count != min(self.size, len(self) - start):
            return weights  # something else has become of the examples on their way
        return without_repetitions(weights, len(self.sampler), self.place, start, count)

    def __len__(self) -> int:
        count = len(self.sampler)
        return count // self.place.world if self.training else -(-count // self.place.world)

    def __iter__(self) -> Iterator[int]:
        # All at once, and apart from what else this process draws, which is its own.
        with SeededRandom(self.seed):
            # As a loader of one process, which draws its workers' seed before the order: the order is the same.
            torch.empty((), dtype=torch.int64).random_()
            chosen = list(self.sampler)
        positions = range(self.place.rank, len(self) * self.place.world, self.place.world)
        return (chosen[position % len(chosen)] for position in positions)


def _shared_out(loader: DataLoader, place: Place, training: bool) -> DataLoader:
    """The same loader over this process's share of the examples."""
    sampler, batches = _sampler(loader), loader.batch_sampler
    if isinstance(sampler, DistributedSampler) or isinstance(loader.dataset, IterableDataset):
        return loader
    if not isinstance(sampler, _SHAREABLE) or type(batches) is not BatchSampler:
        chooser = batches if loader.batch_size is None and batches is not None else loader.sampler
        raise ValueError(
            f"with several processes the examples that a {type(chooser).__name__} chooses cannot be divided; use a "
            "DistributedSampler, or pass an iterable of each process's own batches"
        )
    share = _Share(sampler, place, training, batches.batch_size)
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(share, batches.batch_size, batches.drop_last),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
    )
