"""Layers that draw their output from its moments, where all samples share the input: the moments are computed once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._sampling import Sampling, current_frame, fold, layer_state
from leanbayes.estimators import Call
from leanbayes.estimators.local import OutputMoments, draw_from, output_moments, writes_gradients
from leanbayes.nn._every_copy import is_watched
from leanbayes.nn.layer import BayesianLayer


def shares_moments(module: torch.nn.Module, spec: Sampling) -> bool:
    """Whether a layer may draw all samples of a row from moments that it computes once."""
    if not isinstance(module, BayesianLayer) or type(module).forward is not BayesianLayer.forward:
        return False
    plain = spec.mean is False and spec.zero_mean is False and spec.estimator is None and not spec.joint
    if not plain or torch.is_grad_enabled() or module.weight.tied or is_watched(module):
        return False
    return module.estimator == "local"


class SharedMoments:
    """What runs in the place of a layer's `forward` for samples of the same rows.

    Args:
        layer: A layer that `shares_moments`.
        n: Number of samples.
        kept: Where the moments ``[B, ...]`` are kept from one call to the next.
    """

    def __init__(self, layer: BayesianLayer, n: int, kept: list[OutputMoments]) -> None:
        self.layer = layer
        self.n = n
        self.kept = kept

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs ``[n * B, ...]`` for an input ``[B, ...]``."""
        layer, spec = self.layer, layer_state(self.layer)
        if args or kwargs or not self._draws_by_row(x, spec):
            return type(layer).forward(layer, fold(x, self.n), *args, **kwargs)
        call = Call(layer.op, x, layer.weight, layer.bias, spec, path=layer.path)
        if not self.kept:
            self.kept.append(output_moments(call))
        (moments,) = self.kept
        return draw_from(call, OutputMoments(*(fold(value, self.n) for value in moments)))

    def _draws_by_row(self, x: Tensor, spec: Sampling) -> bool:
        """Whether every row of the input is an example of which the layer draws the output."""
        layer, frame = self.layer, current_frame()
        if not layer.op.batched(x) or not writes_gradients(layer.op, x) or layer.rows_axis(x, spec) != 0:
            return False
        if layer.estimator_otherwise != layer.estimator and not layer.op.one_position(x):
            return False
        return frame is None or frame.of_layer or frame.rows == self.n * len(x)
