"""Feature scales: the shared weight applied to a scaled input, its output scaled again."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators.weight import weight as weight_estimator


@register_estimator("rank1", needs="factors", scales_input=True, joint=True, sharing="rank1", preference=2)
def rank1(call: Call) -> Tensor:
    """``op(x * s, W) * r + b`` for ``w = W * r s^T``, each row with its own draw of r and s (Rank-1 BNN, eq. 1).

    For ``w = W + r s^T`` it is ``op(x, W) + op(x * s, 1) * r + b``.
    """
    op, x, batch_dim = call.op, call.x, call.batch_dim
    if call.zero_mean or not call.weight.factors_fit(op):
        return weight_estimator(call)
    factors = call.weight.factors(call.rows, call.spec)
    scaled = x if factors.in_scale is None else op.scale(x, factors.in_scale, batch_dim)
    y = op(scaled, torch.ones_like(factors.weight) if factors.additive else factors.weight)
    if factors.out_scale is not None:
        y = op.scale(y, factors.out_scale, batch_dim)
    if factors.additive:
        y = y + op(x, factors.weight)
    bias = call.biases()
    return y if bias is None else op.add_bias(y, bias, batch_dim)
