"""Samples folded in the batch axis: the one layout, sample index outermost."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes._rows import map_tensors


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
