"""Normalisation layers with K copies of their scale and shift; running statistics stay shared."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from leanbayes._sampling import Sampling, own_frame, sampling_of
from leanbayes.estimators._base import bias_draws
from leanbayes.estimators.example import row_choice
from leanbayes.methods import Method
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained
from leanbayes.ops import expand_rows
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors.patch import PatchPosterior


class NormLayer(ConvertedLayer):
    """A norm without its own scale and shift, followed by drawn ones.

    Args:
        template: A batch, layer, RMS, group or instance norm with a scale.
        method: `EMP` or `ECMP`.
        batch_dim: Axis of the examples, None where the sampling state decides.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.
    """

    def __init__(
        self,
        template: nn.Module,
        method: Method,
        *,
        batch_dim: int | None = None,
        scope: Scope | None = None,
        path: str = "",
    ) -> None:
        super().__init__(template, method, path, batch_dim)
        core: Any = copy.deepcopy(self.template)
        core._parameters = {name: None for name in template._parameters}
        core._buffers = dict(template._buffers)
        # Norms over trailing axes have a scale of their shape; the others have one per channel, on axis 1.
        self.trailing = isinstance(template, (nn.LayerNorm, nn.RMSNorm))
        setattr(core, "elementwise_affine" if self.trailing else "affine", False)
        self.core = core
        scope = scope or Scope()
        weight: Any = template.weight
        self.weight = self.make_random(weight, None, scope)
        bias: Any = getattr(template, "bias", None)
        self.bias = self.make_bias(bias, 1, scope)
        for name in ("eps", "momentum", "num_features", "normalized_shape", "num_groups", "num_channels"):
            if hasattr(template, name):
                setattr(self, name, getattr(template, name))

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`."""
        names = {"weight": "weight"} | ({} if self.bias is None else {"bias": "bias"})
        return names | {name: f"core.{name}" for name, value in self.core._buffers.items() if value is not None}

    def plain_module(self, values: dict[str, Tensor]) -> nn.Module:
        """See `ConvertedLayer`."""
        module = super().plain_module({name: value for name, value in values.items() if not name.startswith("running")})
        module._buffers = {name: None if b is None else b.clone() for name, b in self.core._buffers.items()}
        return module

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then scale and shift each row with its sample's draw."""
        spec = sampling_of(self)
        if not self._batched(x):
            if spec.n > 1:
                raise ValueError(f"{self.path or 'the layer'} got an input without a batch axis, but n={spec.n}")
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if self.draws_mean(spec):
            scale, shift = self._means(spec)
            if scale.dim() == self.weight.dim():
                # One scale for all rows: the plain norm's own kernel, which rounds otherwise than two steps do.
                values = {"weight": scale} | ({} if shift is None else {"bias": shift})
                return torch.func.functional_call(self.core, values, (x,))
        else:
            with own_frame():
                scale, shift = self._draw(x, spec)
        y = self.core(x)
        y = y * self._spread(scale, y, spec)
        return y if shift is None else y + self._spread(shift, y, spec)

    def _means(self, spec: Sampling) -> tuple[Tensor, Tensor | None]:
        scale = as_trained(self.weight.means(spec.n, spec), self.trained["weight"])
        if not isinstance(self.bias, RandomParameter):
            return scale, self.bias
        return scale, as_trained(self.bias.means(spec.n, spec), self.trained["bias"])

    def _draw(self, x: Tensor, spec: Sampling) -> tuple[Tensor, Tensor | None]:
        posterior = self.weight.posterior
        wanted = spec.estimator or self.method.wanted_estimator
        zero_mean = self.draws_zero_mean(spec)
        if wanted == "example" and isinstance(posterior, PatchPosterior) and not zero_mean:
            choice = row_choice(posterior, x.shape[self.rows_axis(x, spec)], spec)
            bias = self.bias.posterior if isinstance(self.bias, RandomParameter) else None
            return posterior.take(choice), bias.take(choice) if isinstance(bias, PatchPosterior) else None
        draws = self.weight.deviation(spec.n, spec) if zero_mean else self.weight.rsample(spec.n, spec)
        return draws, bias_draws(self.bias, spec, zero_mean)

    def _batched(self, x: Tensor) -> bool:
        if self.trailing:
            return x.dim() > self.weight.dim()
        return not isinstance(self.core, _InstanceNorm) or x.dim() != self.core._get_no_batch_dim()

    def rows_axis(self, x: Tensor, spec: Sampling) -> int:
        """See `ConvertedLayer`; norms over channels have the rows in front."""
        axis = spec.batch_dim if self.batch_dim is None else self.batch_dim
        return axis if self.trailing and x.dim() > axis + self.weight.dim() else 0

    def _spread(self, values: Tensor, y: Tensor, spec: Sampling) -> Tensor:
        """View ``[*shape]`` or ``[rows or samples, *shape]`` so that it broadcasts with y."""
        values = values.to(y.dtype)
        if values.dim() == self.weight.dim():
            return values if self.trailing else values.view(-1, *(1,) * (y.dim() - 2))
        if values.shape[0] == 1:
            return self._spread(values[0], y, spec)
        axis = self.rows_axis(y, spec)
        rows = expand_rows(values, y.shape[axis])
        if self.trailing:
            middle = y.dim() - axis - rows.dim()
            return rows.view(*(1,) * axis, rows.shape[0], *(1,) * middle, *rows.shape[1:])
        return rows.view(*rows.shape, *(1,) * (y.dim() - 2))
