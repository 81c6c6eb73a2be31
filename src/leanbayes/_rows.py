"""Taking apart and joining the rows of samples in nested inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


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


def map_rows(x: Any, change: Callable[[Tensor], Tensor], batch_dim: int = 0) -> Any:
    """Apply a function to every tensor that has a batch axis."""
    return map_tensors(x, lambda t: change(t) if t.dim() > batch_dim else t, batch_dim)


def pick_samples(x: Any, n: int, samples: Sequence[int], batch_dim: int = 0) -> Any:
    """The rows of some of n folded samples, in that order."""

    def pick(t: Tensor) -> Tensor:
        folded = t.unflatten(batch_dim, (n, -1))
        parts = [folded.select(batch_dim, s) for s in samples]
        return parts[0] if len(parts) == 1 else torch.cat(parts, batch_dim)

    return map_rows(x, pick, batch_dim)


def example_axes(shapes: Sequence[Sequence[int]], rows: Sequence[int], batch_dim: int = 0) -> list[int]:
    """Axes on which outputs may have their examples.

    That is `batch_dim`, or the first where a sequence-first model has no positions left; both where both fit.

    Args:
        shapes: Of outputs, or of targets.
        rows: Number of examples in each, samples included.
        batch_dim: Axis of the examples in the model's input.
    """

    def fits(axis: int) -> bool:
        return all([axis < len(shape) and shape[axis] == count for shape, count in zip(shapes, rows)])

    return [axis for axis in dict.fromkeys((batch_dim, 0)) if fits(axis)]


def examples_first(t: Tensor, rows: int, batch_dim: int = 0, known: int | None = None) -> Tensor:
    """A tensor with its examples on the first axis, as it is where there are none.

    Args:
        t: An output or targets.
        rows: Number of examples, samples included.
        batch_dim: Axis of the examples in the model's input.
        known: The axis that decides where both fit, `batch_dim` where None.
    """
    fitting = example_axes([t.shape], [rows], batch_dim)
    axis = known if known in fitting else next(iter(fitting), 0)
    return t.movedim(axis, 0) if axis else t


def join_rows(
    parts: Sequence[Any],
    batch_dim: int = 0,
    order: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    places: Tensor | None = None,
) -> Any:
    """Concatenate outputs along their rows.

    Args:
        parts: Outputs of the same structure.
        batch_dim: Axis of the rows.
        order: Where given, the parts hold folded samples in this order, and the result has them in their own.
        rows: Number of rows of each part, where they may be on the first axis instead, see `example_axes`.
        places: Which of the joined rows come first, second and so on, ``[rows]``.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        axis = batch_dim if rows is None else _joined_axis([part.shape for part in parts], rows, batch_dim)
        if first.dim() <= axis:
            return first
        joined = torch.cat(list(parts), axis)
        if places is not None:
            return joined.index_select(axis, places.to(joined.device))
        if order is None or list(order) == sorted(order):
            return joined
        # Not by an index, which would have to be copied to a GPU: that waits, and cannot be recorded.
        samples = joined.chunk(len(order), axis)
        return torch.cat([samples[place] for place in sorted(range(len(order)), key=order.__getitem__)], axis)
    if isinstance(first, Mapping):
        merged = {key: join_rows([part[key] for part in parts], batch_dim, order, rows, places) for key in first}
        return type(first)(**merged) if type(first) is not dict else merged
    if isinstance(first, (tuple, list)):
        joined = [join_rows(list(group), batch_dim, order, rows, places) for group in zip(*parts)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    return first


def _joined_axis(shapes: Sequence[Sequence[int]], rows: Sequence[int], batch_dim: int) -> int:
    fitting = example_axes(shapes, rows, batch_dim)
    if len(fitting) > 1 and len(shapes[0]) == 2:
        raise ValueError(
            f"with batch_dim={batch_dim}, the {rows[0]} examples of outputs {tuple(shapes[0])} may be on either axis; "
            "use a different number of examples, or return outputs with one more axis"
        )
    return next(iter(fitting), batch_dim)
