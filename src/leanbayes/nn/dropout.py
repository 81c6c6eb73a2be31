"""A model's own dropout layers, kept on in eval mode (MCDropout(p=None))."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._sampling import Identity, Sampling, current_frame, layer_state
from leanbayes.nn._base import ConvertedLayer, Scope
from leanbayes.ops import expand_rows
from leanbayes.posteriors._method import Method

# What alpha dropout puts in the place of dropped values: the limit of SELU far below zero, with the other sign.
_ALPHA = 1.7580993408473766


class DropoutLayer(ConvertedLayer):
    """Dropout that draws whenever the sampling state says so, whatever `training` is.

    Args:
        template: An `nn.Dropout`, `nn.Dropout1d`, `nn.Dropout2d`, `nn.Dropout3d`, `nn.AlphaDropout` or
            `nn.FeatureAlphaDropout`.
        method: `MCDropout(p=None)`.
        scope: Not used.
        path: The layer's name in the model.
    """

    def __init__(self, template: Any, method: Method, *, scope: Scope | None = None, path: str = "") -> None:
        super().__init__(template, method, path)
        self.identity = Identity()
        self.p = template.p
        self.whole_channels = not isinstance(template, (nn.Dropout, nn.AlphaDropout))
        self.keeps_variance = isinstance(template, (nn.AlphaDropout, nn.FeatureAlphaDropout))

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`."""
        return {}

    def draws_noise(self) -> bool:
        """Whether draws differ."""
        return self.p > 0

    def silence_(self) -> None:
        """Drop nothing any more."""
        self.p = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements or channels; where rows may share their noise, the same ones in all rows of a sample."""
        spec = layer_state(self)
        if self.p == 0 or self.draws_mean(spec):
            return x
        if self.p == 1:
            return x * 0
        axis = self.rows_axis(x, spec)
        rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
        if self.whole_channels:
            rest = [rest[0]] + [1] * (len(rest) - 1)
        mask = expand_rows(self._mask((self._masks(x.shape[axis], spec), *rest), x, spec), x.shape[axis])
        mask = mask.movedim(0, axis)
        if not self.keeps_variance:
            return x * mask.to(x.dtype)
        kept = mask > 0
        scale = 1 / math.sqrt((_ALPHA**2 * self.p + 1) * (1 - self.p))
        return (torch.where(kept, x, -_ALPHA) + _ALPHA * self.p) * scale

    def _masks(self, rows: int, spec: Sampling) -> int:
        """How many are drawn: one per sample, or one per row. Rows that are no examples have masks of their own."""
        frame = current_frame()
        examples = frame is not None and frame.rows == rows
        return spec.n if spec.joint or (examples and spec.may_share_rows()) else rows

    def _mask(self, shape: tuple[int, ...], x: Tensor, spec: Sampling) -> Tensor:
        frame = current_frame()
        if not spec.joint or frame is None:
            return noise.keep_mask(shape, self.p, x, spec)
        # One function keeps its masks for as long as the inputs have one shape; a layer used twice drops twice.
        use = frame.count_use((id(self.identity), "uses", shape))
        key = (id(self.identity), shape, use)
        if key not in frame.kept:
            frame.kept[key] = noise.keep_mask(shape, self.p, x, spec)
        return frame.kept[key]
