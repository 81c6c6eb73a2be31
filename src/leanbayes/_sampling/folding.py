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

    return map_tensors(x, repeat, batch_dim)


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

    return map_tensors(y, unfold, batch_dim)


def map_tensors(x: Any, change: Callable[[Tensor], Tensor], batch_dim: int = 0) -> Any:
    """Change every tensor of a nested input.

    A PackedSequence is changed as the padded sequences, with the examples on `batch_dim`, and their lengths.
    """
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        padded = change(padded.movedim(0, batch_dim)).movedim(batch_dim, 0)
        lengths = change(lengths.view(*(1,) * batch_dim, -1)).flatten()
        return pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
    if isinstance(x, Mapping):
        return {key: map_tensors(value, change, batch_dim) for key, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(map_tensors(value, change, batch_dim) for value in x))
    if isinstance(x, (tuple, list)):
        return type(x)(map_tensors(value, change, batch_dim) for value in x)
    return x
