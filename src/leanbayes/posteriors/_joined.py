"""Distributions of one kind as one: their parameters side by side, drawn and measured in one go.

A network has dozens of factors, patches and biases of a few hundred numbers. On its own, each of them costs as many
calls as a large tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

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


def pieces(drawn: Tensor, originals: Sequence[Tensor], kept_axes: int = 0) -> list[Tensor]:
    """Draws ``[n, all elements]`` as one tensor ``[n, *shape]`` for each of the parameters, laid out as they are.

    Args:
        drawn: Draws from a joined posterior.
        originals: A parameter of each part.
        kept_axes: As they were joined.
    """
    shapes = [memory_order(each, kept_axes) for each in originals]
    sizes = [each.shape[kept_axes:].numel() for each in originals]
    found = []
    for each, order, part in zip(originals, shapes, drawn.split(sizes, -1)):
        if len(order) == 1:
            found.append(part)
            continue
        stored = part.view(part.shape[0], *(each.shape[axis] for axis in order))
        back = [1 + order.index(axis) for axis in range(kept_axes, each.dim())]
        found.append(stored.permute(0, *back) if back != sorted(back) else stored)
    return found


def _side_by_side(parts: Sequence[Posterior], name: str, kept_axes: int) -> Tensor:
    tensors: list[Any] = [_in_memory_order(part._parameters[name], kept_axes) for part in parts]  # pyright: ignore
    if kept_axes == 0 or not torch.is_grad_enabled() or not reverse_mode_alone():
        return torch.cat(tensors, -1)
    return SideBySide.apply(*tensors)  # pyright: ignore[reportReturnType]


class SideBySide(torch.autograd.Function):
    """``torch.cat`` along the last axis, whose gradients are taken apart at once.

    They are slices of longer rows, of which autograd would make copies one by one.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        """See the class."""
        ctx.shapes = [each.shape for each in tensors]
        return torch.cat(tensors, -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See the class."""
        sizes = [shape[-1] for shape in ctx.shapes]
        if torch.is_grad_enabled():
            return grad.split(sizes, -1)
        room = torch.empty(grad.numel(), dtype=grad.dtype, device=grad.device)
        found = [each.view(shape) for each, shape in zip(room.split([s.numel() for s in ctx.shapes]), ctx.shapes)]
        torch.split_with_sizes_copy(grad, sizes, -1, out=found)
        return tuple(found)


def _in_memory_order(value: Tensor, kept_axes: int) -> Tensor:
    """The axes after some as one, in the order that they have in memory, so that nothing is copied."""
    if value.dim() == kept_axes + 1:
        return value
    if not value.is_contiguous():
        value = value.permute(*range(kept_axes), *memory_order(value, kept_axes))
    return value.flatten(kept_axes)


def memory_order(value: Tensor, kept_axes: int = 0) -> list[int]:
    """The axes after some, those with the longest steps in memory first."""
    rest = list(range(kept_axes, value.dim()))
    return rest if value.is_contiguous() else sorted(rest, key=lambda axis: -value.stride(axis))
