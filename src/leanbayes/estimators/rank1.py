"""Feature scales: the shared weight applied to a scaled input, its output scaled again."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.estimators._base import bias_draws, register_estimator
from leanbayes.estimators.weight import weight as weight_estimator
from leanbayes.ops import LinearOp
from leanbayes.parameter import RandomParameter


@register_estimator("rank1", scales_input=True)
def rank1(
    op: LinearOp,
    x: Tensor,
    weight: RandomParameter,
    bias: RandomParameter | Tensor | None,
    spec: Sampling,
    batch_dim: int,
    zero_mean: bool,
) -> Tensor:
    """``op(x * s, W) * r + b`` for ``w = W * r s^T``, each row with its own draw of r and s (Rank-1 BNN, eq. 1).

    For ``w = W + r s^T`` it is ``op(x, W) + op(x * s, 1) * r + b``.
    """
    if zero_mean or not weight.factors_fit(op):
        return weight_estimator(op, x, weight, bias, spec, batch_dim, zero_mean)
    factors = weight.factors(x.shape[batch_dim], spec)
    scaled = x if factors.in_scale is None else op.scale(x, factors.in_scale, batch_dim)
    y = op(scaled, torch.ones_like(factors.weight) if factors.additive else factors.weight)
    if factors.out_scale is not None:
        y = op.scale(y, factors.out_scale, batch_dim)
    if factors.additive:
        y = y + op(x, factors.weight)
    drawn = bias_draws(bias, spec, zero_mean)
    return y if drawn is None else op.add_bias(y, drawn, batch_dim)
