"""Flipout: one drawn perturbation, decorrelated between examples by random signs."""

from __future__ import annotations

from torch import Tensor

from leanbayes import noise
from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators._flipout_function import FlipoutFunction, forward
from leanbayes.estimators._written_out import cast, to_keep, wants_gradients, writes_gradients
from leanbayes.estimators.weight import apply_draws
from leanbayes.parameter import RandomParameter


@register_estimator("flipout", needs="symmetric", draws_weight=True, sharing="weight", preference=2)
def flipout(call: Call) -> Tensor:
    """``op(x, mean) + (op(x * s_in, dw) + db) * s_out`` (Wen et al. 2018) for noise symmetric around the mean.

    Signs are drawn per example and feature, the same at all positions and at every use in a pass, so that one example
    meets one weight. Indices have no features: rows of a table get the signs of the output alone. For the backward
    pass x and the signs are kept; the signed input is computed again.
    """
    op, spec = call.op, call.spec
    s_in = call.weight.signs(op.in_axis, op.in_features, call.rows, spec)
    s_out = call.weight.signs(op.out_axis, op.out_features, call.rows, spec)
    deviation = call.weight.deviations(spec.n, spec)
    random_bias = isinstance(call.bias, RandomParameter)
    point = call.bias.mean() if isinstance(call.bias, RandomParameter) else call.bias
    bias_deviation = call.bias.deviations(spec.n, spec) if isinstance(call.bias, RandomParameter) else None
    mean = None if call.zero_mean else call.weight.centre()
    by = _by_hand if writes_gradients(op, call.x) else _by_autograd
    y = by(call, mean, deviation, point, bias_deviation, s_in, s_out)
    if call.zero_mean and point is not None and not random_bias:
        return op.add_bias(y, point, call.batch_dim)
    return y


def _by_hand(
    call: Call,
    mean: Tensor | None,
    deviation: Tensor,
    point: Tensor | None,
    bias_deviation: Tensor | None,
    s_in: Tensor | None,
    s_out: Tensor | None,
) -> Tensor:
    """What keeps x and the signs."""
    low = noise.autocast_dtype(call.x)
    x = call.x if low is None else noise.as_dtype(call.x, low)
    values = (
        to_keep(call.op, x),
        cast(mean, low),
        noise.as_dtype(deviation, x.dtype),
        None if mean is None else cast(point, low),
        cast(bias_deviation, x.dtype),
    )
    # Spread here, lest the backward pass does it again.
    s_in, s_out = (None if s is None else call.op.spread(s, x, call.batch_dim) for s in (s_in, s_out))
    run = FlipoutFunction.apply if wants_gradients(*values) else forward
    return run(call.op, call.spec.n, x.shape, call.batch_dim, *values, s_in, s_out)


def _by_autograd(
    call: Call,
    mean: Tensor | None,
    deviation: Tensor,
    point: Tensor | None,
    bias_deviation: Tensor | None,
    s_in: Tensor | None,
    s_out: Tensor | None,
) -> Tensor:
    """What any op and any kind of differentiation can do."""
    op, x, axis = call.op, call.x, call.batch_dim
    if call.spec.n == 1:
        deviation, bias_deviation = (
            deviation.unsqueeze(0),
            None if bias_deviation is None else bias_deviation.unsqueeze(0),
        )
    noise = apply_draws(op, x if s_in is None else op.scale(x, s_in, axis), deviation, bias_deviation, axis)
    y = noise if s_out is None else op.scale(noise, s_out, axis)
    if op.index_input:
        y = y.to(call.weight.dtype)
    return y if mean is None else op(x, mean, point) + y
