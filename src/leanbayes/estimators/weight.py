"""Draw weights: one per sample, shared by the rows of that sample."""

from __future__ import annotations

from torch import Tensor

from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.ops import LinearOp, rows_per_sample


@register_estimator("weight", shares_weight=True, joint=True, draws_weight=True, preference=1)
def weight(call: Call) -> Tensor:
    """``op(x_s, w_s) + b_s`` with w_s ~ q for each sample s."""
    draws = call.weights()
    if call.op.index_input:
        draws = draws.to(call.weight.dtype)  # an index has no dtype that the output could follow
    return apply_draws(call.op, call.x, draws, call.biases(), call.batch_dim)


def apply_draws(op: LinearOp, x: Tensor, weights: Tensor, bias: Tensor | None, batch_dim: int) -> Tensor:
    """Apply drawn weights ``[n, *shape]`` and a bias ``[out]`` or ``[n, out]`` to the rows of each sample."""
    weights = weights if op.index_input else weights.to(x.dtype)
    if bias is not None:
        bias = bias.to(weights.dtype)
    n = weights.shape[0]
    if n == 1:
        return op(x, weights[0], bias[0] if bias is not None and bias.dim() == 2 else bias)
    rows_per_sample(x.shape[batch_dim], n)
    if bias is not None and bias.dim() == 1:
        bias = bias.expand(n, -1)
    return op.stacked(x, weights, bias, batch_dim)
