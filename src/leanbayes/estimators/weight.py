"""Draw weights: one per sample, shared by the rows of that sample."""

from __future__ import annotations

from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.estimators._base import bias_draws, register_estimator
from leanbayes.ops import LinearOp, rows_per_sample
from leanbayes.parameter import RandomParameter


@register_estimator("weight")
def weight(
    op: LinearOp,
    x: Tensor,
    weight: RandomParameter,
    bias: RandomParameter | Tensor | None,
    spec: Sampling,
    batch_dim: int,
    zero_mean: bool,
) -> Tensor:
    """``op(x_s, w_s) + b_s`` with w_s ~ q for each sample s."""
    draws = weight.deviation(spec.n, spec) if zero_mean else weight.rsample(spec.n, spec)
    if op.index_input:
        draws = draws.to(weight.dtype)  # an index has no dtype that the output could follow
    return apply_draws(op, x, draws, bias_draws(bias, spec, zero_mean), batch_dim)


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
