"""Distributions of one kind as one: their parameters side by side, drawn and measured in one go.

A network has dozens of factors, patches and biases of a few hundred numbers. On its own, each of them costs as many
calls as a large tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._autograd import _top_saved_tensors_default_hooks

from leanbayes._sampling import Sampling, current_frame
from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.posteriors._base import Posterior

P = TypeVar("P", bound=Posterior)
T = TypeVar("T")

# Tensors with more than one axis up to which autograd takes tensors apart as quickly as `Apart` does.
_FEW = 2


class Team(list[P]):
    """Posteriors that are drawn together pass by pass, with what was worked out of them."""

    def __init__(self, parts: Iterable[P]) -> None:
        super().__init__(parts)
        self.facts: dict[Any, Any] = {}


def fact(parts: Sequence[P], name: Any, make: Callable[[], T]) -> T:
    """What `make` gives, which does not change for as long as the parts stay the same modules; kept by a `Team`."""
    if not isinstance(parts, Team) or torch.compiler.is_compiling():
        return make()
    if name not in parts.facts:
        parts.facts[name] = make()
    return parts.facts[name]


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
    # Wrappers for several processes put tensors before the parameters of the same names, which would stay the first's.
    held: dict[str, Any] = {name: value for name, value in first.__dict__.items() if name not in first._parameters}
    originals: dict[str, list[Any]] = {name: [part._parameters[name] for part in parts] for name in first._parameters}
    held["laid_out"] = {name: places(each, kept_axes) for name, each in originals.items()}
    held["_parameters"] = {name: _side_by_side(held["laid_out"][name], each) for name, each in originals.items()}
    held["known"] = {}
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


def once_in_pass(what: str, value: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """What `make` gives for a parameter, once for all who ask for it during one pass.

    It must be a function of autograd that may be differentiated for each of them on its own.
    """
    frame = current_frame()
    if torch.compiler.is_compiling() or frame is None or frame.joined is None or not torch.is_grad_enabled():
        return make(value)
    # What a checkpointed block computes must be the same in its second run.
    if not reverse_mode_alone() or _top_saved_tensors_default_hooks(True):
        return make(value)
    if (what, id(value)) not in frame.joined:
        frame.joined[what, id(value)] = (make(value), value)  # this too, lest its id becomes that of another
    return frame.joined[what, id(value)][0]


def known_in_pass(what: str) -> set[int]:
    """By ``id`` the parameters for which `once_in_pass` has that already."""
    frame = None if torch.compiler.is_compiling() else current_frame()
    if frame is None or frame.joined is None:
        return set()
    return {key[1] for key in frame.joined if key[0] == what}


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


class Places(tuple[Place, ...]):
    """Where several tensors lie side by side.

    Attributes:
        sizes: Number of elements of each.
        shaped: Numbers of those that are no vectors, which take a view to be found.
    """

    sizes: list[int]
    shaped: list[int]

    def __new__(cls, found: Iterable[Place]) -> Places:
        """Several places."""
        self = super().__new__(cls, found)
        self.sizes = [each.size for each in self]
        self.shaped = [number for number, each in enumerate(self) if len(each.shape) != 1]
        return self


def places(originals: Sequence[Tensor], kept_axes: int = 0) -> Places:
    """Where several tensors lie side by side, each in the order that it has in memory."""
    return _places(tuple([(each.shape, each.stride()) for each in originals]), kept_axes)


@functools.lru_cache(maxsize=256)
def _places(layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], kept_axes: int) -> Places:
    found, start = [], 0
    for shape, stride in layouts:
        steps, step = [0] * len(shape), 1
        for axis in sorted(range(kept_axes, len(shape)), key=lambda axis: stride[axis] if shape[axis] > 1 else 0):
            steps[axis] = step
            step *= shape[axis]
        found.append(Place(tuple(shape[kept_axes:]), tuple(steps[kept_axes:]), start, step))
        start += step
    return Places(found)


def single(drawn: Tensor) -> Tensor:
    """Draws ``[n, ...]``, without their first axis where there is one alone."""
    return drawn.squeeze(0) if drawn.shape[0] == 1 else drawn  # not `[0]`, whose gradient is a copy


def pieces(drawn: Tensor, where: Places) -> Sequence[Tensor]:
    """Draws ``[n, all elements]`` as one tensor ``[n, *shape]`` for each of several, laid out as these are.

    Args:
        drawn: Draws from a joined posterior, or ``[all elements]`` for tensors ``[*shape]``.
        where: The places of one of its parameters, see `Posterior.laid_out`.
    """
    if len(where.shaped) <= _FEW:
        # Autograd's own functions are quicker for vectors and no slower for a few others.
        return _apart(where, drawn)
    return Apart.apply(where, False, drawn) if reverse_mode_alone() else _apart(where, drawn)  # pyright: ignore


def _side_by_side(where: Places, tensors: Sequence[Tensor]) -> Tensor:
    return SideBySide.apply(where, *tensors) if reverse_mode_alone() else _joined(where, tensors)  # pyright: ignore


class SideBySide(torch.autograd.Function):
    """Tensors ``[*shape]`` or ``[rows, *shape]`` as one ``[all elements]`` or ``[rows, all elements]``.

    Autograd would see one or two views of each of them, forwards and back, where `Apart` takes gradients at once.
    """

    @staticmethod
    def forward(ctx: Any, where: Places, *tensors: Tensor) -> Tensor:
        """See the class."""
        ctx.where = where
        return _in_memory_order(where, tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the class."""
        if torch.is_grad_enabled():
            return None, *Apart.apply(ctx.where, True, grad)  # pyright: ignore[reportGeneralTypeIssues]
        return None, *_parts(ctx.where, True, grad)  # as a function of autograd it would take twice as long


class Apart(torch.autograd.Function):
    """What `SideBySide` has joined, taken apart again: views, or without gaps in memory where `own` says so."""

    @staticmethod
    def forward(ctx: Any, where: Places, own: bool, whole: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        ctx.set_materialize_grads(False)
        ctx.where, ctx.shape = where, whole.shape
        return _parts(where, own, whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the class; what was not used has no gradient."""
        like = next((grad for grad in grads if grad is not None), None)
        if like is None:
            return None, None, None
        rows = ctx.shape[:-1]
        whole = [like.new_zeros(*rows, *at.shape) if g is None else g for at, g in zip(ctx.where, grads)]
        if torch.is_grad_enabled():
            return None, None, SideBySide.apply(ctx.where, *whole)
        return None, None, _in_memory_order(ctx.where, whole)


def _in_memory_order(where: Places, tensors: Sequence[Tensor]) -> Tensor:
    """What `SideBySide` gives."""
    parts = list(tensors)
    for number in where.shaped:
        parts[number] = _flat(where[number], parts[number])
    return torch.cat(parts, -1)


def _parts(where: Places, own: bool, whole: Tensor) -> tuple[Tensor, ...]:
    """What `Apart` gives."""
    if own and whole.dim() > 1:
        # Slices of longer rows: what becomes the gradient of a parameter would be copied one by one.
        return _copied(where, whole)
    whole = whole.contiguous()
    rows, steps = whole.shape[:-1], whole.stride()[:-1]
    parts = list(whole.split_with_sizes(where.sizes, -1))
    for number in where.shaped:
        place = where[number]
        parts[number] = parts[number].as_strided((*rows, *place.shape), (*steps, *place.stride))
    return tuple(parts)


def _copied(where: Places, whole: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[rows, all elements]`` as tensors ``[rows, *shape]``, one after the other in memory."""
    rows = whole.shape[0]
    room = torch.empty(whole.numel(), dtype=whole.dtype, device=whole.device)
    flat = [part.view(rows, -1) for part in room.split_with_sizes([rows * size for size in where.sizes])]
    torch.split_with_sizes_copy(whole, where.sizes, -1, out=flat)
    for number in where.shaped:
        place = where[number]
        flat[number] = flat[number].as_strided((rows, *place.shape), (place.size, *place.stride))
    return tuple(flat)


def _flat(place: Place, value: Tensor) -> Tensor:
    """A tensor with its shape as one axis, in the order in which it lies in memory; a view where it can be one."""
    rows = value.shape[: value.dim() - len(place.shape)]
    steps = (place.size,) * len(rows)
    stride = (*steps, *place.stride)
    if value.stride() != stride and any(a != b and n > 1 for a, b, n in zip(value.stride(), stride, value.shape)):
        value = value.new_empty_strided(value.shape, stride).copy_(value)
    return value.as_strided((*rows, place.size), (*steps, 1))


def _joined(where: Places, tensors: Sequence[Tensor]) -> Tensor:
    """`SideBySide` by functions that any kind of differentiation knows."""
    found = []
    for place, value in zip(where, tensors):
        kept = value.dim() - len(place.shape)
        found.append(value.permute(*range(kept), *(kept + axis for axis in _order(place))).flatten(kept))
    return torch.cat(found, -1)


def _apart(where: Places, whole: Tensor) -> list[Tensor]:
    """`Apart`, likewise."""
    kept = whole.dim() - 1
    found = list(whole.split_with_sizes(where.sizes, -1))
    for number in where.shaped:
        order = _order(where[number])
        stored = found[number].unflatten(-1, [where[number].shape[axis] for axis in order])
        found[number] = stored.permute(*range(kept), *(kept + order.index(axis) for axis in range(len(order))))
    return found


def _order(place: Place) -> list[int]:
    """The axes, those with the longest steps in memory first."""
    return sorted(range(len(place.shape)), key=lambda axis: -place.stride[axis])


def memory_order(value: Tensor, kept_axes: int = 0) -> list[int]:
    """The axes after some, those with the longest steps in memory first."""
    rest = list(range(kept_axes, value.dim()))
    return rest if value.is_contiguous() else sorted(rest, key=lambda axis: -value.stride(axis))
