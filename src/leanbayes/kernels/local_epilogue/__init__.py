"""The epilogue of local reparameterisation: mean and variance of an output to a draw, in one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.local_epilogue.reference import (
    FLOOR,
    epilogue,
    local_epilogue_reference,
    outputs_like,
    slope_dtype,
    slope_of,
)
from leanbayes.kernels.local_epilogue.triton import local_epilogue_triton

__all__ = ["FLOOR", "epilogue", "local_epilogue", "slope_dtype", "slope_of"]


@torch.library.custom_op("leanbayes::local_epilogue", mutates_args=())
def local_epilogue(
    mean: Tensor | None, var: Tensor, keys: Tensor, dtype: torch.dtype, with_slope: bool
) -> tuple[Tensor, Tensor]:
    """``y = mean + (sqrt(max(var, FLOOR)) - sqrt(FLOOR)) * eps`` with standard normal noise that the keys determine.

    The noise of an element follows from its sample's key and its position in that sample's memory, so that channels
    may be first or last; it is made where it is used and never in memory. Backward once; it keeps the slope alone.

    Args:
        mean: Means, None for zeros.
        var: Variances of the same shape, in any layout and floating dtype.
        keys: Seeds ``[n]`` in int64 on the same device; sample s owns the s-th of n equal runs of axis 0.
        dtype: The output's dtype.
        with_slope: Whether the slope is wanted; without gradients it is not.

    Returns:
        The output, and ``dy / dvar = eps / (2 sqrt(var))`` (0 under the floor) in the output's dtype (float32 for
        float16), or an empty tensor.
    """
    run = local_epilogue_triton if fused(var) else local_epilogue_reference
    return run(mean, var, keys, dtype, with_slope)


@local_epilogue.register_fake
def _fake(
    mean: Tensor | None, var: Tensor, keys: Tensor, dtype: torch.dtype, with_slope: bool
) -> tuple[Tensor, Tensor]:
    return outputs_like(var if mean is None else mean, keys.shape[0], dtype, with_slope)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    mean, var, _, _, with_slope = inputs
    ctx.mean_dtype = None if mean is None else mean.dtype
    ctx.var_dtype = var.dtype
    ctx.with_slope = with_slope
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, Tensor, None, None, None]:
    (slope,) = ctx.saved_tensors
    if not ctx.with_slope:
        raise RuntimeError("local_epilogue has no gradient with_slope=False")
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("local_epilogue can be differentiated once; turn the kernels off by LEANBAYES_KERNELS=0")
    grad_mean = None if ctx.mean_dtype is None else grad.to(ctx.mean_dtype)
    return grad_mean, (grad * slope).to(ctx.var_dtype), None, None, None


local_epilogue.register_autograd(_backward, setup_context=_setup)
