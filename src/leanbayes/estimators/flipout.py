"""Flipout: one drawn perturbation, decorrelated between examples by random signs."""

from __future__ import annotations

from torch import Tensor

from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators.weight import apply_draws
from leanbayes.parameter import RandomParameter


@register_estimator("flipout", needs="symmetric", draws_weight=True, preference=2)
def flipout(call: Call) -> Tensor:
    """``op(x, mean) + (op(x * s_in, dw) + db) * s_out`` (Wen et al. 2018) for noise symmetric around the mean.

    Signs are drawn per example and feature, the same at all positions and at every use in a pass, so that one example
    meets one weight. Indices have no features: rows of a table get the signs of the output alone.
    """
    op, x, spec, batch_dim = call.op, call.x, call.spec, call.batch_dim
    s_in = call.weight.signs(op.in_axis, op.in_features, call.rows, spec)
    s_out = call.weight.signs(op.out_axis, op.out_features, call.rows, spec)
    random_bias = isinstance(call.bias, RandomParameter)
    noise = apply_draws(
        op,
        x if s_in is None else op.scale(x, s_in, batch_dim),
        call.weight.deviation(spec.n, spec),
        call.bias.deviation(spec.n, spec) if isinstance(call.bias, RandomParameter) else None,
        batch_dim,
    )
    y = noise if s_out is None else op.scale(noise, s_out, batch_dim)
    if op.index_input:
        y = y.to(call.weight.dtype)
    point = call.bias.mean() if isinstance(call.bias, RandomParameter) else call.bias
    if call.zero_mean:
        return y if point is None or random_bias else op.add_bias(y, point, batch_dim)
    return op(x, call.weight.mean(), point) + y
