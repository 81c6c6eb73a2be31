"""Draws of a whole weight from its distribution: the mean is read once and the draws are written, nothing else.

Noise is a function of a key per sample and of the position of an element; the backward pass makes it again. Neither
noise nor a matrix of standard deviations is kept. A training step also needs the divergence from the prior: it is
measured where the weight is drawn, and the gradients of both are computed in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from leanbayes.kernels._autograd import (
    direct,
    first_order_only,
    keep_for_each,
    kept_for_each,
    where_needed,
    with_gradients,
)
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._layout import MOST_ELEMENTS, empty_draws, known_layout, laid_out, matrix_layout, same_layout
from leanbayes.kernels.gaussian_kl.reference import free_kl_reference, tied_kl_reference
from leanbayes.kernels.weight_sample.reference import free_draws_reference, tied_draws_reference
from leanbayes.kernels.weight_sample.triton import GaussianPrior, draw_free, draw_tied, free_slopes, tied_slopes

__all__ = [
    "free_draws",
    "free_draws_measured",
    "free_draws_reference",
    "free_fit",
    "tied_draws",
    "tied_draws_measured",
    "tied_draws_reference",
    "tied_fit",
]

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
    return _draw_tied(
        loc, log_u.contiguous(), log_v.contiguous(), keys.contiguous(), out_axis, with_loc, dtype, *_UNMEASURED
    )[0]


def tied_draws_measured(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    centre: Tensor | float,
    prior_std: float,
    *,
    out_axis: int = 0,
    with_loc: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`tied_draws`, and `leanbayes.kernels.gaussian_kl.tied_kl`, the divergence from N(centre, prior_std^2)."""
    if not fused(loc):
        draws = tied_draws_reference(loc, log_u, log_v, keys, out_axis=out_axis, with_loc=with_loc, dtype=dtype)
        return draws, tied_kl_reference(loc, log_u, log_v, centre, prior_std, out_axis)
    prior = _split(centre, prior_std)
    return _draw_tied(loc, log_u.contiguous(), log_v.contiguous(), keys.contiguous(), out_axis, with_loc, dtype, *prior)


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
    return _draw_free(loc, raw_std, keys.contiguous(), with_loc, dtype, *_UNMEASURED)[0]


def free_draws_measured(
    loc: Tensor,
    raw_std: Tensor,
    keys: Tensor,
    centre: Tensor | float,
    prior_std: float,
    *,
    with_loc: bool = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`free_draws`, and `leanbayes.kernels.gaussian_kl.free_kl`, the divergence from N(centre, prior_std^2)."""
    if not fused(loc):
        draws = free_draws_reference(loc, raw_std, keys, with_loc=with_loc, dtype=dtype)
        return draws, free_kl_reference(loc, raw_std, centre, prior_std)
    return _draw_free(loc, raw_std, keys.contiguous(), with_loc, dtype, *_split(centre, prior_std))


# Whether a divergence is measured, and the prior: its mean for each element, or one mean, and its standard deviation.
_UNMEASURED = (False, None, 0.0, 1.0)


def _split(centre: Tensor | float, std: float) -> tuple[bool, Tensor | None, float, float]:
    return (True, centre, 0.0, std) if isinstance(centre, Tensor) else (True, None, float(centre), std)


def _prior(measured: bool, centre: Tensor | None, mean: float, std: float) -> GaussianPrior | None:
    return GaussianPrior(centre, mean, std) if measured else None


# Fakes look at what decides shapes; the rest of an op's arguments is `how`.
def _fake_draws(loc: Tensor, keys: Tensor, dtype: torch.dtype, measured: bool) -> tuple[Tensor, Tensor]:
    divergence = loc.new_empty(() if measured else (0,), dtype=torch.float32)
    return empty_draws(keys.shape[0], loc, dtype), divergence


@custom_op("leanbayes::tied_draws", mutates_args=())
def _tied(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    out_axis: int,
    with_loc: bool,
    dtype: torch.dtype,
    measured: bool,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
) -> tuple[Tensor, Tensor]:
    prior = _prior(measured, centre, prior_mean, prior_std)
    return draw_tied(loc, log_u, log_v, keys, known_layout(loc, out_axis), with_loc, dtype, prior)


@_tied.register_fake
def _(loc: Tensor, log_u: Tensor, log_v: Tensor, keys: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    _, _, dtype, measured, *_ = how
    return _fake_draws(loc, keys, dtype, measured)


@first_order_only
@custom_op("leanbayes::tied_draws_backward", mutates_args=())
def _tied_backward(
    grad: Tensor,
    grad_divergence: Tensor | None,
    loc: Tensor | None,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    out_axis: int,
    with_loc: bool,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return tied_slopes(
        grad,
        grad if grad_divergence is None else grad_divergence,
        grad if loc is None else loc,
        log_u,
        log_v,
        keys,
        known_layout(grad[0], out_axis),
        with_loc,
        _prior(loc is not None, centre, prior_mean, prior_std),
        loc_dtype,
        need_loc,
        need_std,
    )


@_tied_backward.register_fake
def _(grad: Tensor, grad_divergence: Tensor | None, loc: Tensor | None, log_u: Tensor, log_v: Tensor, *how: Any):
    *_, loc_dtype, need_loc, need_std = how
    grad_loc = empty_draws(1, grad[0], loc_dtype)[0] if need_loc else grad.new_empty(0)
    if not need_std:
        return grad_loc, grad.new_empty(0), grad.new_empty(0)
    return grad_loc, torch.empty_like(log_u), torch.empty_like(log_v)


@custom_op("leanbayes::free_draws", mutates_args=())
def _free(
    loc: Tensor,
    raw_std: Tensor,
    keys: Tensor,
    with_loc: bool,
    dtype: torch.dtype,
    measured: bool,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
) -> tuple[Tensor, Tensor]:
    return draw_free(loc, raw_std, keys, with_loc, dtype, _prior(measured, centre, prior_mean, prior_std))


@_free.register_fake
def _(loc: Tensor, raw_std: Tensor, keys: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    _, dtype, measured, *_ = how
    return _fake_draws(loc, keys, dtype, measured)


@first_order_only
@custom_op("leanbayes::free_draws_backward", mutates_args=())
def _free_backward(
    grad: Tensor,
    grad_divergence: Tensor | None,
    loc: Tensor | None,
    raw_std: Tensor,
    keys: Tensor,
    with_loc: bool,
    centre: Tensor | None,
    prior_mean: float,
    prior_std: float,
    loc_dtype: torch.dtype,
    need_loc: bool,
    need_std: bool,
) -> tuple[Tensor, Tensor]:
    return free_slopes(
        grad,
        grad if grad_divergence is None else grad_divergence,
        grad if loc is None else loc,
        raw_std,
        keys,
        with_loc,
        _prior(loc is not None, centre, prior_mean, prior_std),
        loc_dtype,
        need_loc,
        need_std,
    )


@_free_backward.register_fake
def _(grad: Tensor, grad_divergence: Tensor | None, loc: Tensor | None, raw_std: Tensor, *how: Any):
    *_, loc_dtype, need_loc, need_std = how
    grad_loc = torch.empty_like(raw_std, dtype=loc_dtype) if need_loc else grad.new_empty(0)
    return grad_loc, torch.empty_like(raw_std) if need_std else grad.new_empty(0)


def _keep_tied(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    loc, log_u, log_v, keys, out_axis, with_loc, _, *prior = inputs
    _keep(ctx, loc, (log_u, log_v), keys, (out_axis, with_loc), *prior)
    ctx.stride = loc.stride()


def _keep_free(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    loc, raw_std, keys, with_loc, _, *prior = inputs
    _keep(ctx, loc, (raw_std,), keys, (with_loc,), *prior)
    ctx.stride = raw_std.stride()


def _keep(ctx: Any, loc: Tensor, spread: tuple[Tensor, ...], keys: Tensor, how: tuple[Any, ...], *prior: Any) -> None:
    measured, centre, *numbers = prior
    keep_for_each(ctx, loc if measured else None, *spread, keys, centre)
    ctx.how, ctx.prior, ctx.loc_dtype = how, numbers, loc.dtype


def _gradients_by(backward: Any) -> Callable[..., tuple[Tensor | None, ...]]:
    """Gradients of a draw by the op that computes them."""

    def gradients(ctx: Any, grad: Tensor, grad_divergence: Tensor) -> tuple[Tensor | None, ...]:
        loc, *spread, keys, centre = kept_for_each(ctx)
        need_loc, *need_spread = ctx.needs_input_grad[: 1 + len(spread)]
        need_loc, need_std = need_loc and (ctx.how[-1] or loc is not None), any(need_spread)
        grad = laid_out(grad, ctx.stride)
        as_it_is = loc is None and _is_gradient_of_loc(grad, ctx.loc_dtype)
        grad_loc, found = grad[0], []
        if need_std or not as_it_is:
            of_divergence = None if loc is None else grad_divergence
            how = (*ctx.how, centre, *ctx.prior, ctx.loc_dtype, need_loc and not as_it_is, need_std)
            computed, *found = direct(backward)(grad, of_divergence, loc, *spread, keys, *how)
            grad_loc = grad_loc if as_it_is else computed
        return where_needed(ctx, grad_loc if need_loc else None, *found)

    return gradients


def _is_gradient_of_loc(grad: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient in the draws is that in the mean: of one sample, where nothing is rounded."""
    return grad.shape[0] == 1 and grad.dtype == dtype


_draw_tied = with_gradients(_tied, _keep_tied, _gradients_by(_tied_backward))
_draw_free = with_gradients(_free, _keep_free, _gradients_by(_free_backward))
