"""Samples folded in the batch axis: the one layout, sample index outermost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def fold(x: Any, n: int, batch_dim: int = 0) -> Any:
    """Repeat a batch n times along its batch axis, sample index outermost.

    Args:
        x: A tensor ``[B, ...]`` (at `batch_dim`), a PackedSequence, or a mapping, tuple or list of these; anything
            else is passed through.
        n: Number of samples.
        batch_dim: Axis of the examples.

    Returns:
        The same structure with tensors ``[n * B, ...]``.
    """
    if n == 1:
        return x

    def repeat(t: Tensor) -> Tensor:
        if t.dim() <= batch_dim:
            return t
        shape = list(t.shape)
        return (
            t.unsqueeze(batch_dim).expand(*shape[:batch_dim], n, *shape[batch_dim:]).flatten(batch_dim, batch_dim + 1)
        )

    return _map_tensors(x, repeat)


def split(y: Any, n: int, batch_dim: int = 0) -> Any:
    """Undo `fold` on a model's output: ``[n * B, ...]`` becomes ``[n, B, ...]``.

    Args:
        y: A tensor, or a mapping, tuple or list of tensors.
        n: Number of samples.
        batch_dim: Axis of the examples.

    Returns:
        The same structure with the sample axis in front.
    """

    def unfold(t: Tensor) -> Tensor:
        if t.shape[batch_dim] % n:
            raise ValueError(
                f"the output has {t.shape[batch_dim]} rows, not a multiple of the {n} samples; fold the input with "
                f"lb.fold(x, {n}) and run the model inside lb.sampling(n={n})"
            )
        return t.unflatten(batch_dim, (n, -1)).movedim(batch_dim, 0)

    return _map_tensors(y, unfold)


def _map_tensors(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        return pack_padded_sequence(change(padded), change(lengths), batch_first=True, enforce_sorted=False)
    if isinstance(x, Mapping):
        return {key: _map_tensors(value, change) for key, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_map_tensors(value, change) for value in x))
    if isinstance(x, (tuple, list)):
        return type(x)(_map_tensors(value, change) for value in x)
    return x
