"""Batch normalisation between two rank-1 layers, whose scales then cost no pass over memory of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels._autograd import first_order_only, where_needed
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.scaled_norm.reference import (
    Saved,
    Settings,
    apply_reference,
    backward_reference,
    forward_reference,
)
from leanbayes.kernels.scaled_norm.triton import apply_triton, backward_triton, forward_triton

__all__ = ["scaled_norm", "scaled_norm_eval"]


@torch.library.custom_op("leanbayes::scaled_norm", mutates_args=())
def scaled_norm(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    relu: bool,
    eps: float,
    plain: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``a = relu(norm(y * r) + residual)`` and ``a * s``, with the batch's own statistics.

    Between two rank-1 layers, r scales the output of the first and s the input of the second. Statistics and products
    are computed in float32.

    Args:
        y: Input ``[N, C, H, W]``, channels last in memory.
        r: Scale ``[N, C]`` of the input, None for ones.
        weight: Scale ``[C]`` of the norm.
        bias: Shift ``[C]`` of the norm.
        residual: What is added to the normalised input, laid out as y.
        s: Scale ``[N, C]`` of the output, None for none.
        relu: Whether negative values become 0.
        eps: What is added to the variance.
        plain: Whether a is wanted where there is a second scale.

    Returns:
        a, or an empty tensor; ``a * s``, or an empty tensor; mean and variance of each channel ``[C]``; and two
        tensors ``[N, C]`` for the backward pass, which keeps them, y and one output.
    """
    run = forward_triton if fused(y) else forward_reference
    first, second, saved = run(y, r, weight, bias, residual, s, Settings(relu, eps, plain))
    mean, var, row_mean, row_squares = saved
    plain_output = y.new_empty(0) if first is None else first
    return plain_output, y.new_empty(0) if second is None else second, mean, var, row_mean, row_squares


@scaled_norm.register_fake
def _fake(
    y: Tensor, r: Any, weight: Any, bias: Any, residual: Any, s: Tensor | None, relu: bool, eps: float, plain: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=y.device)

    rows, channels = y.shape[:2]
    first, second = _room_for_outputs(y, s, plain)
    return first, second, room(channels), room(channels), room(rows, channels), room(rows, channels)


@torch.library.custom_op("leanbayes::scaled_norm_backward", mutates_args=())
def scaled_norm_backward(
    grad_plain: Tensor | None,
    grad_scaled: Tensor | None,
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    output: Tensor | None,
    s: Tensor | None,
    mean: Tensor,
    var: Tensor,
    row_mean: Tensor,
    row_squares: Tensor,
    relu: bool,
    eps: float,
    has_residual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of y, r, weight, bias, residual and s; empty tensors where there is no such input."""
    last = torch.channels_last
    grads = [None if g is None else g.contiguous(memory_format=last) for g in (grad_plain, grad_scaled)]
    run = backward_triton if fused(y) else backward_reference
    saved = Saved(mean, var, row_mean, row_squares)
    found = run(grads[0], grads[1], y, r, weight, bias, output, s, saved, Settings(relu, eps, False), has_residual)
    return tuple(y.new_empty(0) if each is None else each for each in found)  # pyright: ignore[reportReturnType]


@scaled_norm_backward.register_fake
def _fake_backward(
    grad_plain: Any, grad_scaled: Any, y: Tensor, r: Tensor | None, weight: Any, bias: Any, output: Any,
    s: Tensor | None, mean: Tensor, *how: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    *_, has_residual = how

    def like(value: Tensor | None) -> Tensor:
        return y.new_empty(0) if value is None else torch.empty_like(value)

    residual = torch.empty_like(y) if has_residual else y.new_empty(0)
    return torch.empty_like(y), like(r), torch.empty_like(mean), torch.empty_like(mean), residual, like(s)


first_order_only(scaled_norm_backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    y, r, weight, bias, residual, s, relu, eps, plain = inputs
    ctx.relu, ctx.eps, ctx.has_residual = relu, eps, residual is not None
    ctx.plain = plain or s is None
    ctx.dtypes = weight.dtype, bias.dtype
    kept = (output[0] if s is None else output[1]) if residual is not None else None
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(y, r, weight, bias, kept, s, *output[2:])


def _backward(ctx: Any, grad_plain: Tensor, grad_scaled: Tensor, *_: Any) -> tuple[Any, ...]:
    y, r, weight, bias, output, s, *saved = ctx.saved_tensors
    found = scaled_norm_backward(
        grad_plain if ctx.plain else None,
        None if s is None else grad_scaled,
        y,
        r,
        weight,
        bias,
        output,
        s,
        *saved,
        ctx.relu,
        ctx.eps,
        ctx.has_residual,
    )
    grad_y, grad_r, grad_weight, grad_bias, grad_residual, grad_s = found
    weights = grad_weight.to(ctx.dtypes[0]), grad_bias.to(ctx.dtypes[1])
    return where_needed(ctx, grad_y, grad_r, *weights, grad_residual, grad_s)


scaled_norm.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("leanbayes::scaled_norm_eval", mutates_args=())
def scaled_norm_eval(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    mean: Tensor,
    var: Tensor,
    relu: bool,
    eps: float,
    plain: bool,
) -> tuple[Tensor, Tensor]:
    """The first two results of `scaled_norm`, with statistics ``[C]`` that are known; it has no gradient."""
    run = apply_triton if fused(y) else apply_reference
    first, second = run(y, r, weight, bias, residual, s, mean, var, Settings(relu, eps, plain))
    return y.new_empty(0) if first is None else first, y.new_empty(0) if second is None else second


@scaled_norm_eval.register_fake
def _fake_eval(
    y: Tensor, r: Any, weight: Any, bias: Any, residual: Any, s: Tensor | None, *how: Any
) -> tuple[Tensor, Tensor]:
    *_, plain = how
    return _room_for_outputs(y, s, plain)


def _room_for_outputs(y: Tensor, s: Tensor | None, plain: bool) -> tuple[Tensor, Tensor]:
    first = torch.empty_like(y) if plain or s is None else y.new_empty(0)
    return first, y.new_empty(0) if s is None else torch.empty_like(y)
