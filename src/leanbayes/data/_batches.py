"""Batches in an order that is a function of the seed and the epoch, from which training can resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._rows import Rows
from leanbayes.data.augment import Augmentation

# Inputs up to this size are moved to the device as a whole; of larger ones, one batch at a time.
RESIDENT_BYTES = 4 << 30
_ORDER, _AUGMENT = 0, 1


class Batches:
    """Goes through examples in batches, epoch after epoch.

    Each ``for`` loop gives the rest of the current epoch: all of it at first, what remains after
    :meth:`load_state_dict` or after a loop that was left early. The order depends only on the seed and the number of
    the epoch, and the draws for augmentation on the seed, the epoch and the step, so a run can stop after any batch and
    resume exactly.

    Args:
        x: Inputs ``[N, ...]``, or `Rows` that are read batch by batch (the next one while this one is used).
        y: Targets ``[N, ...]``.
        batch_size: Examples of a batch, on each rank.
        shuffle: Whether each epoch has its own order; otherwise rows come in the order given.
        seed: Seed of order and augmentation.
        augment: Random changes to a batch of inputs as read, with a generator on the batch's device; see
            `leanbayes.data.augment`.
        transform: What to do with the inputs afterwards, such as scaling.
        target_transform: What to do with the targets.
        drop_last: Whether to leave out a last batch that is not full.
        device: Where batches go; tensors up to 4 GiB are moved there whole, once. None leaves them in place.
        rank: Number of this process.
        world_size: Number of processes: each gets its share of the same global order and the same number of batches (if
            the examples do not divide evenly, the first ones fill up).

    Example:
        >>> import torch
        >>> batches = Batches(torch.arange(5), torch.arange(5), 2, shuffle=True, seed=1)
        >>> len(batches), sum(len(x) for x, y in batches), batches.state_dict()["epoch"]
        (3, 5, 1)
    """

    def __init__(
        self,
        x: Tensor | Rows,
        y: Tensor,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augmentation | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        target_transform: Callable[[Tensor], Tensor] | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if len(x) != len(y):
            raise ValueError(f"there are {len(x)} inputs but {len(y)} targets; each input needs one target")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to {world_size - 1}, not {rank}")
        if seed < 0:
            raise ValueError(f"a seed is a whole number from 0 on, not {seed}")
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.augment, self.transform, self.target_transform = augment, transform, target_transform
        self.rank, self.world_size = rank, world_size
        self.device = None if device is None else torch.device(device)
        resident = self.device is not None and isinstance(x, Tensor) and x.nbytes <= RESIDENT_BYTES
        self.x: Tensor | Rows = x.to(self.device) if resident and isinstance(x, Tensor) else x
        self.y = y.to(self.device) if resident else y
        self.epoch, self.step = 0, 0

    @property
    def rows(self) -> int:
        """Examples of an epoch, over all ranks."""
        return len(self.y)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        share = -(-self.rows // self.world_size)
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The remaining batches of the epoch."""
        order = self._order()
        for batch in self._read(order, range(self.step, len(self))):
            # Counted before the batch is handed out: a state saved while it is in use resumes after it.
            self.step += 1
            yield batch
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where the iteration is: the epoch, the batches handed out, and what the order depends on."""
        return {"epoch": self.epoch, "step": self.step, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; the data and the settings must be the same."""
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"cannot resume: {key} was {state[key]}, but is {value} now")
        self.epoch, self.step = state["epoch"], state["step"]

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "rows": self.rows,
            "batch_size": self.batch_size,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
            "world_size": self.world_size,
        }

    def _order(self) -> Tensor | None:
        """This rank's rows in the order of the epoch; None for all rows as they stand."""
        if not self.shuffle and self.world_size == 1:
            return None
        if self.shuffle:
            order = torch.randperm(self.rows, generator=self._generator(_ORDER, self.epoch))
        else:
            order = torch.arange(self.rows)
        order = torch.cat([order, order[: -self.rows % self.world_size]])[self.rank :: self.world_size]
        return order.to(self.x.device) if isinstance(self.x, Tensor) else order

    def _generator(self, *purpose: int, device: torch.device | str = "cpu") -> torch.Generator:
        # SeedSequence keeps the numbers of neighbouring seeds, epochs and steps apart.
        state = np.random.SeedSequence([self.seed, *purpose]).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(state[0]) >> 1)

    def _read(self, order: Tensor | None, steps: range) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(self.x, Tensor):
            for step in steps:
                yield self._finish(step, *self._raw(order, step))
            return
        with ThreadPoolExecutor(1) as reader:
            pending = None
            for step in steps:
                raw = pending.result() if pending is not None else self._raw(order, step)
                pending = reader.submit(self._raw, order, step + 1) if step + 1 in steps else None
                yield self._finish(step, *raw)

    def _raw(self, order: Tensor | None, step: int) -> tuple[Tensor, Tensor]:
        start = step * self.batch_size
        if order is None:
            stop = min(start + self.batch_size, self.rows)
            if isinstance(self.x, Tensor):
                return self.x[start:stop], self.y[start:stop]
            index = torch.arange(start, stop)
        else:
            index = order[start : start + self.batch_size]
        return self.x[index], self.y[index.to(self.y.device)]

    def _finish(self, step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.device is not None:
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        if self.augment is not None:
            x = self.augment(x, self._generator(_AUGMENT, self.rank, self.epoch, step, device=x.device))
        if self.transform is not None:
            x = self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)
