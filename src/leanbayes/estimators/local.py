"""Local reparameterisation: draw the output from its own mean and variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.ops import LinearOp
from leanbayes.parameter import RandomParameter

# Keeps the square root and its derivative finite where the variance is zero, or under it as fast convolutions may
# leave it. A power of 4 near the published 1e-16: its root is exact in every dtype, so that taking it off again leaves
# no noise where there is no variance.
_FLOOR = 2.0**-54


@register_estimator("local", needs="moments", one_weight=False, exact_on_vectors=True, preference=3)
def local(call: Call) -> Tensor:
    """``op(x, mean) + sqrt(op(x^2, var)) * e`` (Kingma et al. 2015), exact for one vector and a Gaussian weight.

    Every output element gets its own noise: on sequences and images one example then meets another weight at each
    position, so the joint distribution of its outputs is approximated. No weight is drawn that could be used again.
    """
    op, x, weight, batch_dim = call.op, call.x, call.weight, call.batch_dim
    moments = weight.moments()
    bias_mean, bias_var = _bias_moments(call.bias, call.zero_mean)
    var = _variance(op, x, moments.var, bias_var)
    std = var.clamp_min(_FLOOR).sqrt() - math.sqrt(_FLOOR)
    eps = noise.normal(var.movedim(batch_dim, 0).shape, var, call.spec).movedim(0, batch_dim)
    if call.zero_mean or moments.mean is None:
        deviation = (std * eps).to(_output_dtype(x, op, weight))
        return deviation if bias_mean is None else op.add_bias(deviation, bias_mean, batch_dim)
    mean = op(x, moments.mean, bias_mean)
    return mean + (std * eps).to(mean.dtype)


def _bias_moments(bias: RandomParameter | Tensor | None, zero_mean: bool) -> tuple[Tensor | None, Tensor | None]:
    if not isinstance(bias, RandomParameter):
        return bias, None
    moments = bias.moments()
    return None if zero_mean else moments.mean, moments.var


def _variance(op: LinearOp, x: Tensor, var: Tensor, bias_var: Tensor | None) -> Tensor:
    # float16 has no room for squares: it is computed in float32. bfloat16 has, so its autocast stays on.
    if not op.index_input:
        x = x.to(noise.compute_dtype(x.dtype))
    device = var.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    if half:
        with torch.autocast(device, enabled=False):
            result = op(op.square(x), var, bias_var)
    else:
        result = op(op.square(x), var.to(x.dtype) if not op.index_input else var, bias_var)
    return result.to(noise.compute_dtype(result.dtype))


def _output_dtype(x: Tensor, op: LinearOp, weight: RandomParameter) -> torch.dtype:
    dtype = weight.dtype if op.index_input else x.dtype
    device = x.device.type
    if torch.is_autocast_enabled(device) and dtype == torch.float32:
        return torch.get_autocast_dtype(device)
    return dtype
