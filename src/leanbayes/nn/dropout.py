"""A model's own dropout layers, kept on in eval mode (MCDropout(p=None))."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from leanbayes import noise
from leanbayes._sampling import Sampling, current_frame, sampling_of
from leanbayes.methods import Method
from leanbayes.nn._base import ConvertedLayer, Scope
from leanbayes.ops import expand_rows


class DropoutLayer(ConvertedLayer):
    """Dropout that draws whenever the sampling state says so, whatever `training` is.

    Args:
        template: An `nn.Dropout`, `nn.Dropout1d`, `nn.Dropout2d` or `nn.Dropout3d`.
        method: `MCDropout(p=None)`.
        scope: Not used.
        path: The layer's name in the model.
    """

    def __init__(self, template: Any, method: Method, *, scope: Scope | None = None, path: str = "") -> None:
        super().__init__(template, method, path)
        self.p = template.p
        self.whole_channels = not isinstance(template, nn.Dropout)

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`."""
        return {}

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements or channels; in joint mode the same ones in all rows of a sample."""
        spec = sampling_of(self)
        if self.p == 0 or self.draws_mean(spec):
            return x
        axis = self.rows_axis(x, spec)
        rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
        if self.whole_channels:
            rest = [rest[0]] + [1] * (len(rest) - 1)
        mask = expand_rows(self._mask((spec.n if spec.joint else x.shape[axis], *rest), x, spec), x.shape[axis])
        return x * mask.movedim(0, axis).to(x.dtype)

    def _mask(self, shape: tuple[int, ...], x: Tensor, spec: Sampling) -> Tensor:
        frame = current_frame()
        if not spec.joint or frame is None:
            return noise.keep_mask(shape, self.p, x, spec)
        # One function keeps its mask for as long as the inputs have one shape.
        key = (id(self), shape)
        if key not in frame.draws:
            frame.draws[key] = noise.keep_mask(shape, self.p, x, spec)
        return frame.draws[key]
