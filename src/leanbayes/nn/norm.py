"""Normalisation layers with K copies of their scale and shift; running statistics stay shared."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leanbayes._sampling import Sampling, current_frame, layer_state, own_frame
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained
from leanbayes.nn._replica import call_leaf
from leanbayes.noise import as_dtype
from leanbayes.ops import expand_rows
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method
from leanbayes.posteriors.component_points import ComponentPoints

TORCHS_NORMS = (_BatchNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _InstanceNorm)


class NormLayer(ConvertedLayer):
    """A norm without its own scale and shift, followed by drawn ones.

    Args:
        template: A batch, layer, RMS, group or instance norm with a scale.
        method: `EMP` or `ECMP`.
        batch_dim: Axis of the examples, None where the sampling state decides.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.

    Attributes:
        axes: Number of axes of a scale.
        wanted: The estimator that the method asks for.
        trailing: Whether the last axes of the input have the scale.
        may_lack_rows: Whether the norm takes inputs without a batch axis, too.
    """

    may_lack_rows = False

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
        self._prepare(template)
        scope = scope or Scope()
        weight: Any = template.weight
        self.weight = self.make_random(weight, None, scope)
        self.axes = weight.dim()
        self.wanted = method.wanted_estimator
        bias: Any = getattr(template, "bias", None)
        if isinstance(self.weight.posterior, ComponentPoints) and bias is not None:
            self.bias = self.make_random(bias, None, scope)
        else:
            self.bias = self.make_bias(bias, 1, scope)
        # Settings that other code may read off a norm.
        for name, value in vars(template).items():
            plain = isinstance(value, (int, float, str, tuple)) or value is None
            if plain and not name.startswith("_") and not hasattr(self, name):
                setattr(self, name, value)

    def _prepare(self, template: nn.Module) -> None:
        """Set `core`, the norm to be called with drawn parameters, and `trailing`: whether its last axes have them."""
        core: Any = copy.deepcopy(self.template)
        core._parameters = {name: None for name in template._parameters}
        core._buffers = dict(template._buffers)
        # Norms over trailing axes have a scale of their shape; the others have one per channel, on axis 1.
        self.trailing = isinstance(template, (nn.LayerNorm, nn.RMSNorm))
        setattr(core, "elementwise_affine" if self.trailing else "affine", False)
        self.may_lack_rows = isinstance(template, _InstanceNorm)
        self.core = core

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
        spec = layer_state(self)
        if not self._batched(x):
            if spec.n > 1:
                raise ValueError(f"{self.path or 'the layer'} got an input without a batch axis, but n={spec.n}")
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if self.draws_mean(spec):
            scale, shift = self._means(spec)
        elif current_frame() is None:
            with own_frame():
                scale, shift = self._draw(x, spec)
        else:
            scale, shift = self._draw(x, spec)
        axes = self.axes
        if scale.dim() > axes or (shift is not None and shift.dim() > axes):
            scale, shift = self._for_all_rows(scale), self._for_all_rows(shift)
        if scale.dim() == axes and (shift is None or shift.dim() == axes):
            # One scale for all rows: the plain norm's own kernel, with parameters of the dtype that it knows.
            dtype = self.weight.dtype
            values = {"weight": as_dtype(scale, dtype)}
            if shift is not None:
                values["bias"] = as_dtype(shift, dtype)
            return call_leaf(self.core, values, x)
        return self._by_rows(x, scale, shift, spec)

    def _for_all_rows(self, values: Any) -> Any:
        """``[*shape]`` where one draw ``[1, *shape]`` serves all rows."""
        if isinstance(values, Tensor) and values.dim() > self.axes and values.shape[0] == 1:
            return values.squeeze(0)  # not `[0]`, whose gradient is a copy
        return values

    def _by_rows(self, x: Tensor, scale: Tensor, shift: Tensor | None, spec: Sampling) -> Tensor:
        """Every row with its own scale and shift, in their precision: copies differ by less than half floats do."""
        core: Any = self.core
        if isinstance(core, _BatchNorm) and not core.training and core.running_mean is not None:
            # The statistics are known: they and the scale are one map.
            scale = scale * torch.rsqrt(core.running_var + self.core.eps)
            centre = core.running_mean * scale
            y, shift = x, -centre if shift is None else shift - centre
        else:
            y = core(x)
        factor = self._spread(scale, y, spec)
        precise = y.to(factor.dtype)
        if shift is None:
            return (precise * factor).to(y.dtype)
        return torch.addcmul(self._spread(shift, y, spec), precise, factor).to(y.dtype)

    def _means(self, spec: Sampling) -> tuple[Tensor, Tensor | None]:
        scale = as_trained(self.weight.means(spec.n, spec), self.trained["weight"])
        if not isinstance(self.bias, RandomParameter):
            return scale, self.bias
        return scale, as_trained(self.bias.means(spec.n, spec), self.trained["bias"])

    def used_estimator(self) -> str:
        """See `Converted`."""
        return "weight" if self.wanted == "auto" else self.wanted

    def _draw(self, x: Tensor, spec: Sampling) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.weight, self.bias
        of_bias = bias if isinstance(bias, RandomParameter) else None
        if self.draws_zero_mean(spec):
            shift = bias if of_bias is None else of_bias.deviations(spec.n, spec)
            return weight.deviations(spec.n, spec), shift  # pyright: ignore[reportReturnType]
        posterior: Any = weight.posterior
        if posterior.shared_index:
            index = posterior.group.row_index(x.shape[self.rows_axis(x, spec)], x, spec)
            shift = None if of_bias is None else of_bias.posterior.rsample_rows(index, spec)  # pyright: ignore
            return posterior.rsample_rows(index, spec), shift
        if (spec.estimator or self.wanted) == "example":
            rows = x.shape[self.rows_axis(x, spec)]
            if "copies" in posterior.offers and not spec.joint and not self.shares_draws(rows):
                choice = posterior.group.row_choice(rows, posterior.copies, spec)
                shift: Any = None if of_bias is None else of_bias.posterior.take(choice, spec)  # pyright: ignore
                return posterior.take(choice, spec), shift
        shift = bias if of_bias is None else of_bias.draws(spec.n, spec)
        return weight.draws(spec.n, spec), shift  # pyright: ignore[reportReturnType]

    def _batched(self, x: Tensor) -> bool:
        if self.trailing:
            return x.dim() > self.axes
        return not self.may_lack_rows or x.dim() != self.core._get_no_batch_dim()

    def rows_axis(self, x: Tensor, spec: Sampling) -> int:
        """See `ConvertedLayer`; norms over channels have the rows in front."""
        axis = spec.batch_dim if self.batch_dim is None else self.batch_dim
        return axis if self.trailing and x.dim() > axis + self.axes else 0

    def _spread(self, values: Tensor, y: Tensor, spec: Sampling) -> Tensor:
        """View ``[*shape]`` or ``[rows or samples, *shape]`` so that it broadcasts with y."""
        if values.dim() == self.axes:
            return values if self.trailing else values.view(-1, *(1,) * (y.dim() - 2))
        axis = self.rows_axis(y, spec)
        rows = expand_rows(values, y.shape[axis])
        if self.trailing:
            middle = y.dim() - axis - rows.dim()
            return rows.view(*(1,) * axis, rows.shape[0], *(1,) * middle, *rows.shape[1:])
        return rows.view(*rows.shape, *(1,) * (y.dim() - 2))
