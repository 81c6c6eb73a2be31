"""One patch per example: every copy is applied, and each row keeps the output of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.estimators._base import register_estimator
from leanbayes.estimators.weight import weight as weight_estimator
from leanbayes.ops import LinearOp, expand_rows
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors.patch import PatchPosterior


@register_estimator("example")
def example(
    op: LinearOp,
    x: Tensor,
    weight: RandomParameter,
    bias: RandomParameter | Tensor | None,
    spec: Sampling,
    batch_dim: int,
    zero_mean: bool,
) -> Tensor:
    """``sum_k z_k op(x, M_k)`` with a one-hot choice z of each row."""
    posterior = weight.posterior
    assert isinstance(posterior, PatchPosterior)
    if zero_mean:
        return weight_estimator(op, x, weight, bias, spec, batch_dim, zero_mean)
    rows = x.shape[batch_dim]
    choice = expand_rows(row_choice(posterior, rows, spec), rows)  # [rows or 1, K]
    total = None
    for k in range(posterior.components):
        point = bias.mean(k) if isinstance(bias, RandomParameter) else bias
        y = op(x, weight.mean(k), point)
        term = y * choice[:, k].to(y.dtype).view(*(1,) * batch_dim, -1, *(1,) * (y.dim() - batch_dim - 1))
        total = term if total is None else total + term
    assert isinstance(total, torch.Tensor)
    return total


def row_choice(posterior: PatchPosterior, rows: int, spec: Sampling) -> Tensor:
    """One-hot choices ``[rows, K]``, or one per sample where the state fixes the component."""
    if spec.joint or posterior.group.fixed_index(spec.n, posterior.copies, spec) is not None:
        return posterior.layer_weights(spec.n, spec)
    return posterior.group.weights((rows,), posterior.copies, spec)
