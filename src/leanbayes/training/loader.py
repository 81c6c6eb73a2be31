"""Batches of a DataLoader or of any other iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from leanbayes._inputs import rows
from leanbayes._sampling import SeededRandom, current_sampling
from leanbayes.nn._rows import map_rows
from leanbayes.training.data import Augment, Batch, Place, Source, keeps_state
from leanbayes.training.seeds import derive

_LABEL_KEYS = ("labels", "label")


class LoaderSource(Source):
    """Batches ``(x, y)``, ``(x, y, weights)`` or mappings with "labels", from a DataLoader or any iterable.

    Every epoch starts from a seed of its own, also in a generator that the loader or its sampler holds, so that the
    order does not depend on what ran before. A resumed epoch draws and drops the batches that were done, unless the
    iterable has `state_dict` and `load_state_dict` and so can go to the place itself. With several processes a
    DataLoader's sampler is replaced by one that shares out the examples; other iterables must do that themselves.
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
        if place.world > 1 and isinstance(loader, DataLoader):
            loader = _shared_out(loader, place, seed, training)
        self.loader = loader
        self.place = place
        self.seed = seed
        self.augment = augment
        self.batches = _length(loader)
        # `leanbayes.data.Batches` counts its rows itself.
        self.examples = getattr(loader, "rows", _length(getattr(loader, "dataset", None)))
        self._generator = torch.Generator(place.device) if augment is not None else None
        self._resumed = False

    def begin(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `Source`."""
        if self._resumed:
            self._resumed = False
            return self._prepare(iter(self.loader), epoch, start)
        names = ("sampler", "batch_sampler")
        for part in (self.loader, *(getattr(self.loader, name, None) for name in names)):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)  # pyright: ignore
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(derive(self.seed, "order", epoch))
        # Samplers draw their seed when the first batch is asked for.
        with SeededRandom(derive(self.seed, "order", epoch)):
            items = _Started(self.loader)
        for _ in range(start):
            next(items, None)
        return self._prepare(items, epoch, start)

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
            yield Batch(x, self._move(y), weights, rows(x, current_sampling().batch_dim))

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


def _shared_out(loader: DataLoader, place: Place, seed: int, training: bool) -> DataLoader:
    """The same loader over this process's share of the examples."""
    if isinstance(loader.sampler, DistributedSampler) or loader.batch_size is None:
        return loader
    shuffle = isinstance(loader.sampler, RandomSampler)
    sampler = DistributedSampler(loader.dataset, place.world, place.rank, shuffle, seed, drop_last=training)
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        persistent_workers=loader.persistent_workers,
    )
