"""Patched layers whose input all samples share: every copy is applied once, and samples pick among the outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._estimator_registry import estimator
from leanbayes._sampling import FrameCloser, FrameOpener, Sampling, fold, layer_state
from leanbayes.estimators import Call
from leanbayes.estimators.weight import apply_draws
from leanbayes.nn.layer import BayesianLayer


def pays(module: nn.Module, spec: Sampling, samples: int) -> bool:
    """Whether so many samples of a module cost more than all its copies, which would give the same."""
    if not isinstance(module, BayesianLayer) or type(module).forward is not BayesianLayer.forward:
        return False
    plain = spec.mean is False and spec.zero_mean is False and spec.estimator is None
    if not plain or torch.is_grad_enabled() or module.weight.tied or is_watched(module):
        return False
    call = _call(module, torch.empty(0), spec)
    chooses = estimator(module.estimator).shares_weight or _chooses_by_row(module)
    return chooses and call.draws_copies and samples >= module.weight.posterior.components


class EveryCopy:
    """What runs in the place of a layer's `forward` for samples of the same rows.

    Args:
        layer: A layer that it `pays` for.
        n: Number of samples.
        outputs: Where the outputs of all copies ``[K, B, ...]`` are kept from one call to the next.
    """

    def __init__(self, layer: BayesianLayer, n: int, outputs: list[Tensor]) -> None:
        self.layer = layer
        self.n = n
        self.outputs = outputs

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs ``[n * B, ...]`` for an input ``[B, ...]``."""
        layer, spec = self.layer, layer_state(self.layer)
        if args or kwargs or not layer.op.batched(x) or layer.rows_axis(x, spec) != 0:
            return type(layer).forward(layer, fold(x, self.n), *args, **kwargs)
        if not self.outputs:
            self.outputs.append(_all_outputs(_call(layer, x, spec)))
        (outputs,) = self.outputs
        choice = self._choice(len(x), spec)
        if len(choice) == self.n:
            return outputs.index_select(0, choice).flatten(0, 1)
        row = torch.arange(len(x), device=x.device).repeat(self.n)
        return outputs.flatten(0, 1).index_select(0, choice * len(x) + row)

    def _choice(self, rows: int, spec: Sampling) -> Tensor:
        """The copy of each sample ``[n]``, or of each of its rows ``[n * B]``."""
        weight: Any = self.layer.weight
        copies = weight.posterior.copies
        if _chooses_by_row(self.layer) and not spec.joint:
            return weight.posterior.group.row_choice(self.n * rows, copies, spec)
        return weight.choice(self.n, spec)


def _call(layer: BayesianLayer, x: Tensor, spec: Sampling) -> Call:
    return Call(layer.op, x, layer.weight, layer.bias, spec, path=layer.path)


def _chooses_by_row(layer: BayesianLayer) -> bool:
    return estimator(layer.estimator).needs == "copies"


def _all_outputs(call: Call) -> Tensor:
    """Outputs of every copy ``[K, B, ...]``, by one batched product where the op has it."""
    weights, biases = call.copies()
    count = len(weights)
    return apply_draws(call.op, fold(call.x, count), weights, biases, 0).unflatten(0, (count, -1))


def is_watched(module: nn.Module) -> bool:
    """Whether hooks look at the rows that go in and out."""
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(not isinstance(hook, (FrameOpener, FrameCloser)) for hook in hooks)
