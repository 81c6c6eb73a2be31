"""Flipout: one drawn perturbation, decorrelated between examples by random signs."""

from __future__ import annotations

from torch import Tensor

from leanbayes import noise
from leanbayes._sampling import Sampling
from leanbayes.estimators._base import register_estimator
from leanbayes.estimators.weight import apply_draws
from leanbayes.ops import LinearOp
from leanbayes.parameter import RandomParameter


@register_estimator("flipout", scales_input=True)
def flipout(
    op: LinearOp,
    x: Tensor,
    weight: RandomParameter,
    bias: RandomParameter | Tensor | None,
    spec: Sampling,
    batch_dim: int,
    zero_mean: bool,
) -> Tensor:
    """``op(x, mean) + op(x * s_in, dw) * s_out`` (Wen et al. 2018) for distributions symmetric around the mean.

    Signs are drawn per example and feature, the same at all positions, so that one example sees one weight.
    """
    rows = x.shape[batch_dim]
    s_in = noise.signs((rows, op.in_features), x, spec)
    s_out = noise.signs((rows, op.out_features), x, spec)
    perturbation = apply_draws(op, op.scale(x, s_in, batch_dim), weight.deviation(spec.n, spec), None, batch_dim)
    y = op.scale(perturbation, s_out, batch_dim)
    if isinstance(bias, RandomParameter):
        y = op.add_bias(y, bias.deviation(spec.n, spec), batch_dim)
        point = None if zero_mean else bias.mean()
    else:
        point = bias
    if zero_mean:
        return y if point is None else op.add_bias(y, point, batch_dim)
    return op(x, weight.mean(), point) + y
