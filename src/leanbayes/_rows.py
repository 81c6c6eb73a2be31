"""Taking apart and joining the rows of samples in nested inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def map_rows(x: Any, change: Callable[[Tensor], Tensor], batch_dim: int = 0) -> Any:
    """Apply a function to every tensor that has a batch axis."""
    if isinstance(x, Tensor):
        return change(x) if x.dim() > batch_dim else x
    if isinstance(x, Mapping):
        return {key: map_rows(value, change, batch_dim) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(map_rows(value, change, batch_dim) for value in x)
    return x


def pick_samples(x: Any, n: int, samples: Sequence[int], batch_dim: int = 0) -> Any:
    """The rows of some of n folded samples, in that order."""

    def pick(t: Tensor) -> Tensor:
        folded = t.unflatten(batch_dim, (n, -1))
        parts = [folded.select(batch_dim, s) for s in samples]
        return parts[0] if len(parts) == 1 else torch.cat(parts, batch_dim)

    return map_rows(x, pick, batch_dim)


def join_rows(parts: Sequence[Any], batch_dim: int = 0, order: Sequence[int] | None = None) -> Any:
    """Concatenate outputs along their rows.

    Args:
        parts: Outputs of the same structure.
        batch_dim: Axis of the rows.
        order: Where given, the parts hold folded samples in this order, and the result has them in their own.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        if first.dim() <= batch_dim:
            return first
        joined = torch.cat(list(parts), batch_dim)
        if order is None or list(order) == sorted(order):
            return joined
        # Not by an index, which would have to be copied to a GPU: that waits, and cannot be recorded.
        samples = joined.chunk(len(order), batch_dim)
        return torch.cat([samples[place] for place in sorted(range(len(order)), key=order.__getitem__)], batch_dim)
    if isinstance(first, Mapping):
        merged = {key: join_rows([part[key] for part in parts], batch_dim, order) for key in first}
        return type(first)(**merged) if type(first) is not dict else merged
    if isinstance(first, (tuple, list)):
        return type(first)(join_rows(list(group), batch_dim, order) for group in zip(*parts))
    return first
