"""Distributions of one kind as one: their parameters side by side, drawn and measured in one go.

A network has dozens of factors, patches and biases of a few hundred numbers. On its own, each of them costs as many
calls as a large tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from leanbayes._sampling import Sampling, current_frame
from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.posteriors._base import Posterior

P = TypeVar("P", bound=Posterior)


def joined(parts: Sequence[P], kept_axes: int = 0) -> P:
    """One posterior over the elements of several.

    Args:
        parts: Posteriors with one `join_key`.
        kept_axes: First axes of their parameters that stay, as that of the components; the others become one.

    Returns:
        A posterior that holds concatenated parameters in the place of its own; gradients reach the parts.
    """
    first = parts[0]
    whole = first.__new__(type(first))
    held: dict[str, Any] = first.__dict__.copy()
    held["_parameters"] = {name: _side_by_side(parts, name, kept_axes) for name in first._parameters}
    held |= first.joined_state(list(parts))
    object.__setattr__(whole, "__dict__", held)
    return whole


def joined_in_pass(parts: Sequence[P], kept_axes: int = 0) -> P:
    """The same, once for all who ask for it during one pass, so that gradients of all of them reach the parts at once.

    They are the draws and the divergence.
    """
    frame = current_frame()
    if torch.compiler.is_compiling() or frame is None or frame.joined is None:
        return joined(parts, kept_axes)
    key = (torch.is_grad_enabled(), kept_axes, *map(id, parts))
    if key not in frame.joined:
        frame.joined[key] = (joined(parts, kept_axes), parts)  # the parts too, lest an id becomes that of another
    return frame.joined[key][0]


def joined_for(parts: Sequence[P], spec: Sampling, kept_axes: int = 0) -> P:
    """The same, once for all passes of one prediction."""
    if spec.kept is None:
        return joined_in_pass(parts, kept_axes)
    key = (parts[0], "joined")
    if key not in spec.kept:
        spec.kept[key] = joined(parts, kept_axes)
    return spec.kept[key]


class Place(NamedTuple):
    """Where a tensor lies in what several are joined to, and how.

    Attributes:
        shape: Its shape, without the axes that stay.
        stride: Its steps in memory, which has no gaps.
        start: Its first element.
        size: Number of its elements.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    size: int


def places(originals: Sequence[Tensor], kept_axes: int = 0) -> tuple[Place, ...]:
    """Where several tensors lie side by side, each in the order that it has in memory."""
    return _places(tuple([(each.shape, each.stride()) for each in originals]), kept_axes)


@functools.lru_cache(maxsize=256)
def _places(layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], kept_axes: int) -> tuple[Place, ...]:
    found, start = [], 0
    for shape, stride in layouts:
        steps, step = [0] * len(shape), 1
        for axis in sorted(range(kept_axes, len(shape)), key=lambda axis: stride[axis] if shape[axis] > 1 else 0):
            steps[axis] = step
            step *= shape[axis]
        found.append(Place(tuple(shape[kept_axes:]), tuple(steps[kept_axes:]), start, step))
        start += step
    return tuple(found)


def single(drawn: Tensor) -> Tensor:
    """Draws ``[n, ...]``, without their first axis where there is one alone."""
    return drawn.squeeze(0) if drawn.shape[0] == 1 else drawn  # not `[0]`, whose gradient is a copy


def pieces(drawn: Tensor, originals: Sequence[Tensor], kept_axes: int = 0) -> Sequence[Tensor]:
    """Draws ``[n, all elements]`` as one tensor ``[n, *shape]`` for each of the parameters, laid out as they are.

    Args:
        drawn: Draws from a joined posterior, or ``[all elements]`` for tensors ``[*shape]``.
        originals: A parameter of each part.
        kept_axes: As they were joined.
    """
    where = places(originals, kept_axes)
    return Apart.apply(where, False, drawn) if reverse_mode_alone() else _apart(where, drawn)  # pyright: ignore


def _side_by_side(parts: Sequence[Posterior], name: str, kept_axes: int) -> Tensor:
    tensors: list[Any] = [part._parameters[name] for part in parts]
    where = places(tensors, kept_axes)
    return SideBySide.apply(where, *tensors) if reverse_mode_alone() else _joined(where, tensors)  # pyright: ignore


class SideBySide(torch.autograd.Function):
    """Tensors ``[*shape]`` or ``[rows, *shape]`` as one ``[all elements]`` or ``[rows, all elements]``.

    Autograd would see one or two views of each of them, forwards and back, where `Apart` takes gradients at once.
    """

    @staticmethod
    def forward(ctx: Any, where: Sequence[Place], *tensors: Tensor) -> Tensor:
        """See the class."""
        ctx.where = where
        return torch.cat([_flat(place, each) for place, each in zip(where, tensors)], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the class."""
        return None, *Apart.apply(ctx.where, True, grad)  # pyright: ignore[reportGeneralTypeIssues]


class Apart(torch.autograd.Function):
    """What `SideBySide` has joined, taken apart again: views, or without gaps in memory where `own` says so."""

    @staticmethod
    def forward(ctx: Any, where: Sequence[Place], own: bool, whole: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        ctx.set_materialize_grads(False)
        ctx.where, ctx.shape = where, whole.shape
        if own and whole.dim() > 1:
            # Slices of longer rows: what becomes the gradient of a parameter would be copied one by one.
            return _copied(where, whole)
        whole = whole.contiguous()
        rows, steps = whole.shape[:-1], whole.stride()[:-1]
        return tuple(
            part if len(each.shape) == 1 else part.as_strided((*rows, *each.shape), (*steps, *each.stride))
            for part, each in zip(whole.split([each.size for each in where], -1), where)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the class; what was not used has no gradient."""
        like = next((grad for grad in grads if grad is not None), None)
        if like is None:
            return None, None, None
        rows = ctx.shape[:-1]
        whole = [like.new_zeros(*rows, *at.shape) if g is None else g for at, g in zip(ctx.where, grads)]
        return None, None, SideBySide.apply(ctx.where, *whole)


def _copied(where: Sequence[Place], whole: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[rows, all elements]`` as tensors ``[rows, *shape]``, one after the other in memory."""
    rows = whole.shape[0]
    room = torch.empty(whole.numel(), dtype=whole.dtype, device=whole.device)
    flat = [room.as_strided((rows, each.size), (each.size, 1), rows * each.start) for each in where]
    torch.split_with_sizes_copy(whole, [each.size for each in where], -1, out=flat)
    return tuple(
        part if len(each.shape) == 1 else part.as_strided((rows, *each.shape), (each.size, *each.stride))
        for part, each in zip(flat, where)
    )


def _flat(place: Place, value: Tensor) -> Tensor:
    """A tensor with its shape as one axis, in the order in which it lies in memory; a view where it can be one."""
    if len(place.shape) == 1:
        return value
    rows = value.shape[: value.dim() - len(place.shape)]
    steps = (place.size,) * len(rows)
    stride = (*steps, *place.stride)
    if value.stride() != stride and any(a != b and n > 1 for a, b, n in zip(value.stride(), stride, value.shape)):
        value = value.new_empty_strided(value.shape, stride).copy_(value)
    return value.as_strided((*rows, place.size), (*steps, 1))


def _joined(where: Sequence[Place], tensors: Sequence[Tensor]) -> Tensor:
    """`SideBySide` by functions that any kind of differentiation knows."""
    found = []
    for place, value in zip(where, tensors):
        kept = value.dim() - len(place.shape)
        found.append(value.permute(*range(kept), *(kept + axis for axis in _order(place))).flatten(kept))
    return torch.cat(found, -1)


def _apart(where: Sequence[Place], whole: Tensor) -> list[Tensor]:
    """`Apart`, likewise."""
    found = []
    kept = whole.dim() - 1
    for place, part in zip(where, whole.split([place.size for place in where], -1)):
        order = _order(place)
        stored = part.unflatten(-1, [place.shape[axis] for axis in order])
        found.append(stored.permute(*range(kept), *(kept + order.index(axis) for axis in range(len(order)))))
    return found


def _order(place: Place) -> list[int]:
    """The axes, those with the longest steps in memory first."""
    return sorted(range(len(place.shape)), key=lambda axis: -place.stride[axis])


def memory_order(value: Tensor, kept_axes: int = 0) -> list[int]:
    """The axes after some, those with the longest steps in memory first."""
    rest = list(range(kept_axes, value.dim()))
    return rest if value.is_contiguous() else sorted(rest, key=lambda axis: -value.stride(axis))
