"""What `fit` takes as data, as batches whose order is a function of the seed and the epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from leanbayes._inputs import check_no_nan, rows, tensors
from leanbayes._rows import map_rows
from leanbayes.training.seeds import derive

Augment = Callable[[Any, torch.Generator], Any]

# Tensors up to this share of a GPU's free memory live there.
_RESIDENT_SHARE = 0.25


class Batch(NamedTuple):
    """Examples of one forward pass, on the device."""

    x: Any
    y: Tensor
    weights: Tensor | None
    rows: int


@dataclass(frozen=True)
class Place:
    """Where batches go: the device, and which share of each batch this process takes."""

    device: torch.device
    rank: int = 0
    world: int = 1


class Source(ABC):
    """Batches, epoch by epoch.

    Attributes:
        examples: Examples of one epoch over all processes, None where that is not known.
        batches: Batches of one epoch in this process, None where that is not known.
    """

    examples: int | None
    batches: int | None

    @abstractmethod
    def begin(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from the one with number `start` on."""

    def state(self) -> Any:
        """What a checkpoint must hold besides the number of batches done, None where that is all."""
        return None

    def load_state(self, state: Any) -> None:
        """Go on from a `state`; the next `begin` then starts there."""
        assert state is None


def split_data(data: Any) -> tuple[Any, Any]:
    """The training and the validation part (or None) of what `fit` was given."""
    if isinstance(data, Mapping):
        if "train" not in data:
            raise ValueError(f"data given as a mapping needs 'train' (and may have 'valid'), not {', '.join(data)}")
        return data["train"], data.get("valid")
    if hasattr(data, "train"):
        return data.train, getattr(data, "valid", None)
    return data, None


def as_tensors(part: Any) -> tuple[Any, Tensor, Tensor | None] | None:
    """Inputs, targets and weights of a part that is made of tensors, None for a loader."""
    if keeps_state(part):
        return None  # it goes through its examples itself, whatever else it has
    if hasattr(part, "x") and hasattr(part, "y"):
        part = (part.x, part.y, getattr(part, "weights", None))
    elif hasattr(part, "tensors"):
        part = tuple(part.tensors)
    if not isinstance(part, (tuple, list)) or len(part) not in (2, 3) or not _is_array(part[1]):
        return None
    x, y, weights = (*part, None)[:3]
    return _from_arrays(x), _from_arrays(y), None if weights is None else _from_arrays(weights)


def keeps_state(part: Any) -> bool:
    """Whether a part can say where it is and go there."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _from_arrays(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        tensor = torch.from_numpy(x)
        return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
    if isinstance(x, Mapping):
        return {key: _from_arrays(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return tuple(_from_arrays(value) for value in x)
    return x


class TensorSource(Source):
    """Batches of tensors ``[N, ...]``, which live on the device where they are small enough.

    In training, the order of an epoch is a permutation drawn from the seed and the epoch, and each batch is shared
    out over the processes. In an evaluation every example comes once: where the processes' shares differ, an example
    is repeated with weight 0, so that all processes have the same number of batches.
    """

    def __init__(
        self,
        x: Any,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        place: Place,
        batch_size: int,
        seed: int = 0,
        training: bool = True,
        drop_last: bool = False,
        augment: Augment | None = None,
    ) -> None:
        count = check_examples(x, y, weights)
        if training and count < place.world:
            raise ValueError(f"{count} examples cannot be shared between {place.world} processes")
        if batch_size % place.world:
            raise ValueError(f"batch_size={batch_size} is not a multiple of the {place.world} processes that share it")
        self.examples = count
        self.place = place
        self.seed = seed
        self.training = training
        self.augment = augment
        self.size = min(batch_size, count - count % place.world if training else count)
        self.used = self._used(count, drop_last)
        self.share = -(-self.size // place.world)
        self.batches = -(-self.used // (self.share * place.world))
        if _fits(place.device, (x, y, weights)):
            x = map_rows(x, lambda t: t.to(place.device))
            y = y.to(place.device)
            weights = None if weights is None else weights.to(place.device)
        self.x, self.y, self.weights = x, y, weights
        self._generator = torch.Generator(place.device) if augment is not None else None

    def _used(self, count: int, drop_last: bool) -> int:
        """Examples of one epoch that this configuration uses."""
        world = self.place.world
        if not self.training:
            return -(-count // world) * world
        used = count - count % self.size if drop_last else count - count % world
        # A batch norm cannot train on a single example.
        left = (used % self.size) // world
        return used - world if left == 1 and used > self.size and self.size > world else used

    def order(self, epoch: int) -> Tensor:
        """Indices of this process's examples in the order of an epoch, ``[used / world]``."""
        assert self.examples is not None
        if self.training:
            generator = torch.Generator().manual_seed(derive(self.seed, "order", epoch))
            indices = torch.randperm(self.examples, generator=generator)[: self.used]
        else:
            indices = torch.arange(self.used).remainder_(self.examples)
        return indices[self.place.rank :: self.place.world].contiguous()

    def begin(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `Source`."""
        order = self.order(epoch).to(self.y.device)
        for number, indices in enumerate(order.split(self.share)[start:], start):
            yield self._batch(epoch, number, indices)

    def _batch(self, epoch: int, number: int, indices: Tensor) -> Batch:
        x = map_rows(self.x, lambda t: self._take(t, indices))
        if self.augment is not None:
            assert self._generator is not None
            self._generator.manual_seed(derive(self.seed, "augment", epoch, number, self.place.rank))
            x = self.augment(x, self._generator)
        y = self._take(self.y, indices)
        return Batch(x, y, self._weights(indices, number * self.share), indices.numel())

    def _take(self, t: Tensor, indices: Tensor) -> Tensor:
        taken = t.index_select(0, indices)
        if taken.device == self.place.device:
            return taken
        return taken.pin_memory().to(self.place.device, non_blocking=True)

    def _weights(self, indices: Tensor, offset: int) -> Tensor | None:
        weights = None if self.weights is None else self._take(self.weights, indices)
        if self.training or self.used == self.examples:
            return weights
        assert self.examples is not None
        return without_repetitions(weights, self.examples, self.place, offset, indices.numel())


def without_repetitions(weights: Tensor | None, examples: int, place: Place, start: int, count: int) -> Tensor:
    """Weights of a process's examples from number `start` on, where those beyond all `examples` are repetitions: 0."""
    positions = torch.arange(start, start + count) * place.world + place.rank
    first = (positions < examples).to(place.device, torch.get_default_dtype())
    return first if weights is None else weights * first


def check_examples(x: Any, y: Tensor, weights: Tensor | None) -> int:
    """Number of examples, or one clear error."""
    if not any(True for _ in tensors(x)):
        raise TypeError(f"the inputs must be tensors, not {type(x).__name__}")
    count = rows(x)
    if count == 0:
        raise ValueError("the data has no examples")
    for name, values in (("inputs", x), ("targets", y), ("weights", weights)):
        for tensor in tensors(values):
            if tensor.shape[:1] != (count,):
                raise ValueError(f"there are {count} inputs, but the {name} have shape {tuple(tensor.shape)}")
    check_no_nan(x)
    return count


def _fits(device: torch.device, parts: tuple[Any, ...]) -> bool:
    if device.type != "cuda":
        return True
    size = sum(t.numel() * t.element_size() for part in parts if part is not None for t in tensors(part))
    return size <= _RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]
