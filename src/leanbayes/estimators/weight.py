"""Draw weights: one per sample, shared by the rows of that sample."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._estimator_registry import register_estimator
from leanbayes._rows import join_rows, pick_samples
from leanbayes.estimators._base import Call
from leanbayes.noise import as_dtype
from leanbayes.ops import LinearOp, rows_per_sample
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._joined import single

# Elements of drawn weights from which on it is quicker to sort samples by the copy that they drew.
_MANY = 1 << 18


@register_estimator("weight", shares_weight=True, joint=True, draws_weight=True, preference=1)
def weight(call: Call) -> Tensor:
    """``op(x_s, w_s) + b_s`` with w_s ~ q for each sample s."""
    if _copies_are_better(call):
        return _by_copy(call)
    draws = call.drawn(call.weight)
    if call.op.index_input:
        draws = draws.to(call.weight.dtype)  # an index has no dtype that the output could follow
    bias = call.drawn(call.bias) if isinstance(call.bias, RandomParameter) else call.bias
    if call.spec.n == 1:
        return _apply_one(call.op, call.x, draws, bias)
    return apply_draws(call.op, call.x, draws, bias, call.batch_dim)


def apply_draws(op: LinearOp, x: Tensor, weights: Tensor, bias: Tensor | None, batch_dim: int) -> Tensor:
    """Apply drawn weights ``[n, *shape]`` and a bias ``[out]`` or ``[n, out]`` to the rows of each sample."""
    n = weights.shape[0]
    if n == 1:
        return _apply_one(op, x, single(weights), bias if bias is None or bias.dim() == 1 else single(bias))
    weights = weights if op.index_input else as_dtype(weights, x.dtype)
    if bias is not None:
        bias = as_dtype(bias, weights.dtype)
    rows_per_sample(x.shape[batch_dim], n)
    if bias is not None and bias.dim() == 1:
        bias = bias.expand(n, -1)
    return op.stacked(x, weights, bias, batch_dim)


def _apply_one(op: LinearOp, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    weight = weight if op.index_input else as_dtype(weight, x.dtype)
    return op(x, weight, None if bias is None else as_dtype(bias, weight.dtype))


def _copies_are_better(call: Call) -> bool:
    """Whether few copies serve many samples, so that it is better to draw no weights."""
    # The choice has to be looked at, which would stop a GPU's queue.
    if not call.draws_copies or call.x.device.type != "cpu" or torch.is_grad_enabled():
        return False
    n = call.spec.n
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return n == 1 or n * call.weight.numel() >= _MANY


def _by_copy(call: Call) -> Tensor:
    """The same by one product for each copy that was drawn, with the rows of all samples that drew it."""
    choice = call.choice().tolist()
    weights, biases = call.copies()
    samples: dict[int, list[int]] = {}
    for s, k in enumerate(choice):
        samples.setdefault(k, []).append(s)
    rows_per_sample(call.rows, len(choice))
    outputs = [
        apply_draws(call.op, _rows_of(call, mine), weights[k : k + 1], _bias_of(biases, k), call.batch_dim)
        for k, mine in samples.items()
    ]
    if len(outputs) == 1:
        return outputs[0]
    return join_rows(outputs, call.batch_dim, [s for mine in samples.values() for s in mine])


def _rows_of(call: Call, samples: list[int]) -> Tensor:
    n = call.spec.n
    return call.x if len(samples) == n else pick_samples(call.x, n, samples, call.batch_dim)


def _bias_of(biases: Tensor | None, copy: int) -> Tensor | None:
    return biases if biases is None or biases.dim() == 1 else biases[copy]
