"""The divergence of a weight's Gaussian posterior from a Gaussian prior, in one pass over the weight.

The value and each gradient read the weight once; no matrix of standard deviations is kept. Sums over tiles are in
float32, sums of the tiles in float64, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels._autograd import direct, first_order_only, where_needed, with_gradients
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._layout import known_layout
from leanbayes.kernels.gaussian_kl.reference import free_kl_reference, tied_kl_reference
from leanbayes.kernels.gaussian_kl.triton import free_slopes, free_value, tied_slopes, tied_value

__all__ = ["free_kl", "free_kl_reference", "tied_kl", "tied_kl_reference"]


def tied_kl(
    loc: Tensor, log_u: Tensor, log_v: Tensor, centre: Tensor | float, prior_std: float, out_axis: int = 0
) -> Tensor:
    """KL(N(loc, std^2) || N(centre, prior_std^2)), summed, for std = exp(log_u) @ exp(log_v).T.

    By a Triton kernel where there is one.

    Args:
        loc: Means ``[*shape]``.
        log_u: ``[shape[out_axis], k]``.
        log_v: ``[rest, k]``, the other axes in their order.
        centre: The prior's mean, a number or ``[*shape]`` laid out as `loc`.
        prior_std: The prior's standard deviation.
        out_axis: Axis of the output features.

    Returns:
        A scalar in float32 (float64 for float64 parameters).
    """
    if not fused(loc):
        return tied_kl_reference(loc, log_u, log_v, centre, prior_std, out_axis)
    tensor, number = _split(centre)
    return _measure_tied(loc, log_u.contiguous(), log_v.contiguous(), tensor, number, prior_std, out_axis)


def free_kl(loc: Tensor, raw_std: Tensor, centre: Tensor | float, prior_std: float) -> Tensor:
    """KL(N(loc, std^2) || N(centre, prior_std^2)), summed, for std = softplus(raw_std).

    By a Triton kernel where there is one.

    Args:
        loc: Means ``[*shape]``.
        raw_std: Standard deviations before the softplus ``[*shape]``, laid out as `loc`.
        centre: The prior's mean, a number or ``[*shape]`` laid out as `loc`.
        prior_std: The prior's standard deviation.

    Returns:
        A scalar in float32 (float64 for float64 parameters).
    """
    if not fused(loc):
        return free_kl_reference(loc, raw_std, centre, prior_std)
    tensor, number = _split(centre)
    return _measure_free(loc, raw_std, tensor, number, prior_std)


def _split(centre: Tensor | float) -> tuple[Tensor | None, float]:
    return (centre, 0.0) if isinstance(centre, Tensor) else (None, float(centre))


@custom_op("leanbayes::tied_kl", mutates_args=())
def _tied(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    out_axis: int,
) -> Tensor:
    return tied_value(loc, log_u, log_v, centre, prior_mean, prior_std, known_layout(loc, out_axis))


@_tied.register_fake
def _(loc: Tensor, *how: Any) -> Tensor:
    return loc.new_empty((), dtype=torch.float32)


@first_order_only
@custom_op("leanbayes::tied_kl_backward", mutates_args=())
def _tied_backward(
    grad: Tensor,
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    out_axis: int,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    layout = known_layout(loc, out_axis)
    return tied_slopes(grad, loc, log_u, log_v, centre, prior_mean, prior_std, layout, need_loc, need_std)


@_tied_backward.register_fake
def _(grad: Tensor, loc: Tensor, log_u: Tensor, log_v: Tensor, *how: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, need_loc, need_std = how
    grad_loc = torch.empty_like(loc) if need_loc else loc.new_empty(0)
    if not need_std:
        return grad_loc, loc.new_empty(0), loc.new_empty(0)
    return grad_loc, torch.empty_like(log_u), torch.empty_like(log_v)


@custom_op("leanbayes::free_kl", mutates_args=())
def _free(loc: Tensor, raw_std: Tensor, centre: Tensor | None, prior_mean: float, prior_std: float) -> Tensor:
    return free_value(loc, raw_std, centre, prior_mean, prior_std)


@_free.register_fake
def _(loc: Tensor, *how: Any) -> Tensor:
    return loc.new_empty((), dtype=torch.float32)


@first_order_only
@custom_op("leanbayes::free_kl_backward", mutates_args=())
def _free_backward(
    grad: Tensor,
    loc: Tensor,
    raw_std: Tensor,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor]:
    return free_slopes(grad, loc, raw_std, centre, prior_mean, prior_std, need_loc, need_std)


@_free_backward.register_fake
def _(grad: Tensor, loc: Tensor, raw_std: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    *_, need_loc, need_std = how
    grad_loc = torch.empty_like(loc) if need_loc else loc.new_empty(0)
    return grad_loc, torch.empty_like(raw_std) if need_std else loc.new_empty(0)


def _differentiable(op: Any, backward: Any, spread: int) -> Callable[..., Tensor]:
    """An op with gradients in the means and in the next tensors, so many as standard deviations are made of."""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors = 1 + spread + 1  # and the prior's means
        ctx.save_for_backward(*inputs[:tensors])
        ctx.constants = inputs[tensors:]

    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        need_loc, *need_spread = ctx.needs_input_grad[: 1 + spread]
        found = direct(backward)(grad, *ctx.saved_tensors, *ctx.constants, need_loc, any(need_spread))
        return where_needed(ctx, *found)

    return with_gradients(op, keep, gradients)


_measure_tied = _differentiable(_tied, _tied_backward, spread=2)
_measure_free = _differentiable(_free, _free_backward, spread=1)
