"""Feature scales: the shared weight applied to a scaled input, its output scaled again."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators._rank1_function import Rank1Function
from leanbayes.estimators._written_out import cast, writes_gradients
from leanbayes.estimators.weight import weight as weight_estimator
from leanbayes.ops import LinearOp, rows_per_sample

# Elements of an input up to which keeping a scaled copy takes less than not to: 1 MB in float32.
_SMALL = 2**18


@register_estimator("rank1", needs="factors", scales_input=True, joint=True, sharing="rank1", preference=2)
def rank1(call: Call) -> Tensor:
    """``op(x * s, W) * r + b`` for ``w = W * r s^T``, each row with its own draw of r and s (Rank-1 BNN, eq. 1).

    For ``w = W + r s^T`` it is ``op(x, W) + op(x * s, 1) * r + b``.
    """
    op, x, batch_dim = call.op, call.x, call.batch_dim
    if call.zero_mean or not call.weight.factors_fit(op):
        return weight_estimator(call)
    vectors = op.groups_vectors(x)
    factors = call.weight.factors(call.rows, call.spec, vectors=vectors)
    # Vectors that share the scales of their sample are seen as positions of one row: nothing is repeated for each.
    grouped = vectors and call.spec.n > 1 and call.weight.shares_factors(call.spec, vectors)
    if grouped:
        x = x.unflatten(0, (call.spec.n, rows_per_sample(call.rows, call.spec.n)))
    weight = torch.ones_like(factors.weight) if factors.additive else factors.weight
    y = _product(op, x, weight, factors.in_scale, factors.out_scale, batch_dim)
    if factors.additive:
        y = y + op(x, factors.weight)
    if grouped:
        y = y.flatten(0, 1)
    bias = call.biases()
    return y if bias is None else op.add_bias(y, bias, batch_dim)


def _product(op: LinearOp, x: Tensor, weight: Tensor, s: Tensor | None, r: Tensor | None, batch_dim: int) -> Tensor:
    """``op(x * s, weight) * r``."""
    s = None if s is None else op.spread(s, x, batch_dim)
    if s is not None and _worth_scaling_again(op, x, s):
        low = noise.autocast_dtype(x)
        # An output has as many axes as the input, its rows and features where the input has them.
        r = None if r is None else cast(op.spread(r, x, batch_dim), low)
        return Rank1Function.apply(op, x, cast(weight, low), s, r)
    y = op(x if s is None else x * s, weight)
    return y if r is None else op.scale(y, r, batch_dim)


def _worth_scaling_again(op: LinearOp, x: Tensor, s: Tensor) -> bool:
    """Whether autograd would keep the scaled input beside a large input, which the gradient of the scale needs."""
    # Compilers decide themselves what they keep and what they compute again.
    return s.requires_grad and x.numel() > _SMALL and not torch.compiler.is_compiling() and writes_gradients(op, x)
