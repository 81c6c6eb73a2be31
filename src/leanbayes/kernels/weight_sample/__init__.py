"""Draws of a whole weight from its distribution: the mean is read once and the draws are written, nothing else.

Noise is a function of a key per sample and of the position of an element; the backward pass makes it again. Neither
noise nor a matrix of standard deviations is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels._autograd import direct, first_order_only, with_gradients
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._layout import MOST_ELEMENTS, empty_draws, known_layout, laid_out, matrix_layout, same_layout
from leanbayes.kernels.weight_sample.reference import free_draws_reference, tied_draws_reference
from leanbayes.kernels.weight_sample.triton import draw_free, draw_tied, free_slopes, tied_slopes

__all__ = ["free_draws", "free_draws_reference", "free_fit", "tied_draws", "tied_draws_reference", "tied_fit"]

# Columns of the factors from which on a product of matrices is the better way.
_MOST_RANKS = 16


def tied_fit(loc: Tensor, log_u: Tensor, out_axis: int) -> bool:
    """Whether `tied_draws` can take a weight: its rank is small and its memory without gaps."""
    return log_u.shape[1] <= _MOST_RANKS and matrix_layout(loc.shape, loc.stride(), out_axis) is not None


def free_fit(loc: Tensor, raw_std: Tensor) -> bool:
    """Whether `free_draws` can take a weight: both tensors lie alike in memory, without gaps."""
    return 0 < loc.numel() <= MOST_ELEMENTS and same_layout(loc, raw_std)


def tied_draws(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    *,
    out_axis: int = 0,
    with_loc: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``loc + (exp(log_u) @ exp(log_v).T) * eps_s`` for each sample s, by a Triton kernel where there is one.

    Args:
        loc: Means ``[*shape]``; draws lie in memory as they do.
        log_u: ``[shape[out_axis], k]``.
        log_v: ``[rest, k]``, the other axes in their order.
        keys: ``[n]``, int64.
        out_axis: Axis of the output features.
        with_loc: Whether the means are added.
        dtype: Of the draws.

    Returns:
        ``[n, *shape]``.
    """
    if not fused(loc):
        return tied_draws_reference(loc, log_u, log_v, keys, out_axis=out_axis, with_loc=with_loc, dtype=dtype)
    return _draw_tied(loc, log_u.contiguous(), log_v.contiguous(), keys.contiguous(), out_axis, with_loc, dtype)


def free_draws(
    loc: Tensor, raw_std: Tensor, keys: Tensor, *, with_loc: bool = True, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``loc + softplus(raw_std) * eps_s`` for each sample s, by a Triton kernel where there is one.

    Args:
        loc: Means ``[*shape]``; draws lie in memory as they do.
        raw_std: Standard deviations before the softplus ``[*shape]``.
        keys: ``[n]``, int64.
        with_loc: Whether the means are added.
        dtype: Of the draws.

    Returns:
        ``[n, *shape]``.
    """
    if not fused(loc):
        return free_draws_reference(loc, raw_std, keys, with_loc=with_loc, dtype=dtype)
    return _draw_free(loc, raw_std, keys.contiguous(), with_loc, dtype)


@custom_op("leanbayes::tied_draws", mutates_args=())
def _tied(
    loc: Tensor, log_u: Tensor, log_v: Tensor, keys: Tensor, out_axis: int, with_loc: bool, dtype: torch.dtype
) -> Tensor:
    return draw_tied(loc, log_u, log_v, keys, known_layout(loc, out_axis), with_loc, dtype)


@_tied.register_fake
def _(
    loc: Tensor, log_u: Tensor, log_v: Tensor, keys: Tensor, out_axis: int, with_loc: bool, dtype: torch.dtype
) -> Tensor:
    return empty_draws(keys.shape[0], loc, dtype)


@first_order_only
@custom_op("leanbayes::tied_draws_backward", mutates_args=())
def _tied_backward(
    grad: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    out_axis: int,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return tied_slopes(grad, log_u, log_v, keys, known_layout(grad[0], out_axis), loc_dtype, need_loc, need_std)


@_tied_backward.register_fake
def _(
    grad: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    out_axis: int,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_loc = empty_draws(1, grad[0], loc_dtype)[0] if need_loc else grad.new_empty(0)
    if not need_std:
        return grad_loc, grad.new_empty(0), grad.new_empty(0)
    return grad_loc, torch.empty_like(log_u), torch.empty_like(log_v)


def _keep_tied(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    loc, log_u, log_v, keys, ctx.out_axis, ctx.with_loc, _ = inputs
    ctx.save_for_backward(log_u, log_v, keys)
    ctx.loc_dtype, ctx.stride = loc.dtype, loc.stride()


def _tied_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    log_u, log_v, keys = ctx.saved_tensors
    need_loc, need_u, need_v = ctx.needs_input_grad[:3]
    need_loc, need_std = need_loc and ctx.with_loc, need_u or need_v
    grad = laid_out(grad, ctx.stride)
    as_it_is = _is_gradient_of_loc(grad, ctx.loc_dtype)
    grad_loc, grad_u, grad_v = grad[0], None, None
    if need_std or not as_it_is:
        needed = (need_loc and not as_it_is, need_std)
        computed, grad_u, grad_v = direct(_tied_backward)(
            grad, log_u, log_v, keys, ctx.out_axis, ctx.loc_dtype, *needed
        )
        grad_loc = grad_loc if as_it_is else computed
    given = (grad_loc if need_loc else None, grad_u if need_u else None, grad_v if need_v else None)
    return *given, None, None, None, None


_draw_tied = with_gradients(_tied, _keep_tied, _tied_gradients)


def _is_gradient_of_loc(grad: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient in the draws is that in the mean: of one sample, where nothing is rounded."""
    return grad.shape[0] == 1 and grad.dtype == dtype


@custom_op("leanbayes::free_draws", mutates_args=())
def _free(loc: Tensor, raw_std: Tensor, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
    return draw_free(loc, raw_std, keys, with_loc, dtype)


@_free.register_fake
def _(loc: Tensor, raw_std: Tensor, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
    return empty_draws(keys.shape[0], loc, dtype)


@first_order_only
@custom_op("leanbayes::free_draws_backward", mutates_args=())
def _free_backward(
    grad: Tensor, raw_std: Tensor, keys: Tensor, loc_dtype: torch.dtype, need_loc: bool, need_std: bool
) -> tuple[Tensor, Tensor]:
    return free_slopes(grad, raw_std, keys, loc_dtype, need_loc, need_std)


@_free_backward.register_fake
def _(
    grad: Tensor, raw_std: Tensor, keys: Tensor, loc_dtype: torch.dtype, need_loc: bool, need_std: bool
) -> tuple[Tensor, Tensor]:
    grad_loc = torch.empty_like(raw_std, dtype=loc_dtype) if need_loc else grad.new_empty(0)
    return grad_loc, torch.empty_like(raw_std) if need_std else grad.new_empty(0)


def _keep_free(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    loc, raw_std, keys, ctx.with_loc, _ = inputs
    ctx.save_for_backward(raw_std, keys)
    ctx.loc_dtype = loc.dtype


def _free_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    raw_std, keys = ctx.saved_tensors
    need_loc, need_std = ctx.needs_input_grad[0] and ctx.with_loc, ctx.needs_input_grad[1]
    grad = laid_out(grad, raw_std.stride())
    as_it_is = _is_gradient_of_loc(grad, ctx.loc_dtype)
    grad_loc, grad_raw = grad[0], None
    if need_std or not as_it_is:
        needed = (need_loc and not as_it_is, need_std)
        computed, grad_raw = direct(_free_backward)(grad, raw_std, keys, ctx.loc_dtype, *needed)
        grad_loc = grad_loc if as_it_is else computed
    return grad_loc if need_loc else None, grad_raw if need_std else None, None, None, None


_draw_free = with_gradients(_free, _keep_free, _free_gradients)
