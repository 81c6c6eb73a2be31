"""The choice of a copy for each element of a parameter, as ECMP draws it.

Indices are a function of a key per sample and of the position of an element; the backward pass makes them again, adds
nothing up by atomic operations, and no index is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels._autograd import direct, first_order_only, with_gradients
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._layout import MOST_ELEMENTS
from leanbayes.kernels.patch_choice.reference import chosen_reference, edges_of
from leanbayes.kernels.patch_choice.triton import choice_slopes, choose

__all__ = ["chosen", "chosen_reference", "fits"]

# A program of the backward pass holds the sums of all copies of some elements.
_MOST_COPIES = 64


def fits(copies: Tensor) -> bool:
    """Whether `chosen` can take the copies: they are few, not too large and contiguous."""
    return copies.is_contiguous() and copies.shape[0] <= _MOST_COPIES and copies[0].numel() <= MOST_ELEMENTS


def chosen(copies: Tensor, probs: Tensor, keys: Tensor) -> Tensor:
    """``copies[index[s, i], i]`` with indices of probabilities `probs` for each sample s.

    By a Triton kernel where there is one.

    Args:
        copies: ``[K, *shape]``.
        probs: ``[K]``; they get no gradient.
        keys: ``[n]``, int64.

    Returns:
        ``[n, *shape]`` in float32 (float64 for float64 copies).
    """
    if not fused(copies):
        return chosen_reference(copies, probs, keys)
    return _choose(copies, edges_of(probs), keys.contiguous())


@custom_op("leanbayes::patch_choice", mutates_args=())
def _chosen(copies: Tensor, edges: Tensor, keys: Tensor) -> Tensor:
    return choose(copies, edges, keys)


@_chosen.register_fake
def _(copies: Tensor, edges: Tensor, keys: Tensor) -> Tensor:
    return copies.new_empty((keys.shape[0], *copies.shape[1:]), dtype=torch.float32)


@first_order_only
@custom_op("leanbayes::patch_choice_backward", mutates_args=())
def _chosen_backward(grad: Tensor, edges: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    return choice_slopes(grad, edges, keys, dtype)


@_chosen_backward.register_fake
def _(grad: Tensor, edges: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.new_empty((edges.shape[0] + 1, *grad.shape[1:]), dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    copies, edges, keys = inputs
    ctx.save_for_backward(edges, keys)
    ctx.dtype = copies.dtype


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
    if not ctx.needs_input_grad[0]:
        return None, None, None
    return direct(_chosen_backward)(grad.contiguous(), *ctx.saved_tensors, ctx.dtype), None, None


_choose = with_gradients(_chosen, _keep, _gradients)
