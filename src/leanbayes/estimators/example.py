"""One patch per example: every copy is applied, and each row keeps the output of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._estimator_registry import register_estimator
from leanbayes.estimators._base import Call
from leanbayes.estimators.weight import weight as weight_estimator
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors.patch import PatchPosterior


@register_estimator("example", needs="copies", joint=True)
def example(call: Call) -> Tensor:
    """``op(x, M_k)`` with a choice k for each row."""
    posterior = call.weight.posterior
    assert isinstance(posterior, PatchPosterior)
    group, spec = posterior.group, call.spec
    by_row = group.given_rows(spec) is not None
    if call.zero_mean or spec.joint or not (by_row or group.fixed_index(spec.n, posterior.copies, spec) is None):
        return weight_estimator(call)
    index = group.row_choice(call.rows, posterior.copies, spec)
    outputs = torch.stack([_output(call, k) for k in range(posterior.components)])  # [K, rows, ...]
    choice = torch.nn.functional.one_hot(index, posterior.components).T.to(outputs.dtype)
    chosen = (outputs * choice.view(*choice.shape, *(1,) * (outputs.dim() - 2))).sum(0)
    return group.learn_from(chosen, outputs, index, spec).movedim(0, call.batch_dim)


def _output(call: Call, k: int) -> Tensor:
    """The output of one copy, the rows in front."""
    bias = call.bias.mean(k) if isinstance(call.bias, RandomParameter) else call.bias
    return call.op(call.x, call.weight.mean(k), bias).movedim(call.batch_dim, 0)
