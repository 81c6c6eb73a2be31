"""Batch norms of which every component of a mixture has its own: scale, shift and statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._sampling import Sampling, layer_state
from leanbayes.nn.norm import NormLayer
from leanbayes.ops import rows_per_sample
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors.component_points import ComponentPoints

_STATISTICS = ("running_mean", "running_var")


class ComponentBatchNorm(NormLayer):
    """A batch norm for each of K components: the rows of a component are normalised among themselves.

    In training, ``y = (x - m_k) / sqrt(v_k + eps) * gamma_k + beta_k`` with the mean and variance of the rows of
    component k in the batch, whether the batch is tiled or its examples have components of their own. A component
    without a row keeps its running statistics.

    Args:
        template: A batch norm with scale and shift.
        method: `Rank1` or `BatchEnsemble` with ``norms="component"``.
        **options: As in `NormLayer`.
    """

    def _prepare(self, template: nn.Module) -> None:
        if isinstance(template, nn.SyncBatchNorm):
            raise ValueError(
                "norms='component' does not synchronise statistics between devices; use norms='shared' with "
                "SyncBatchNorm"
            )
        super()._prepare(template)
        components = self.method.components  # pyright: ignore[reportAttributeAccessIssue]
        self.core._buffers = {
            name: _stacked(value, components) if name in _STATISTICS else value
            for name, value in self.core._buffers.items()
        }

    @property
    def group(self) -> Any:
        """Owner of the component index."""
        return self.weight.posterior.component_group()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift each row by its component."""
        spec = layer_state(self)
        component = self._one_component(spec)
        if component is not None:
            return self._plain(x, component)
        index = self._components(x, spec)
        if self._tracked():
            mean, var = self.core.running_mean, self.core.running_var
        else:
            mean, var = self._moments(x, index)
        scale = self._copies(self.weight) * torch.rsqrt(var + self.core.eps)  # [K, C]
        shift = -mean * scale
        if self.bias is not None:
            shift = shift + self._copies(self.bias)
        factor, offset = (
            each.index_select(0, index).view(*x.shape[:2], *(1,) * (x.dim() - 2)) for each in (scale, shift)
        )
        return torch.addcmul(offset, x.to(factor.dtype), factor).to(x.dtype)

    def _tracked(self) -> bool:
        return not self.core.training and self.core.running_mean is not None

    @staticmethod
    def _copies(parameter: Any) -> Tensor:
        """``[K, C]``, also of a shift that other layers share."""
        random = isinstance(parameter, RandomParameter)
        values: Any = parameter.posterior.copies if random else parameter.unsqueeze(0)
        return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values

    def _one_component(self, spec: Sampling) -> int | None:
        """The component of all rows where the state names one."""
        if isinstance(spec.component, int):
            self.group.check_known(spec.component)
            return spec.component
        return 0 if self.draws_mean(spec) and spec.leaves_components_open() else None

    def _components(self, x: Tensor, spec: Sampling) -> Tensor:
        rows, group = x.shape[0], self.group
        if not self.draws_mean(spec):
            return group.row_index(rows, x, spec)
        index = group.fixed_index(spec.n, x, spec)
        if index is None:
            index = torch.zeros(spec.n, dtype=torch.long, device=x.device)
        return index.repeat_interleave(rows_per_sample(rows, spec.n), output_size=rows)

    def _plain(self, x: Tensor, component: int) -> Tensor:
        """All rows with one component: the plain norm's own kernel."""
        core = self.core
        self._count_batch()
        mean, var = (None if each is None else each[component] for each in (core.running_mean, core.running_var))
        bias = self.bias.mean(component) if isinstance(self.bias, RandomParameter) else self.bias
        training = core.training or mean is None
        return F.batch_norm(x, mean, var, self.weight.mean(component), bias, training, self._momentum(), core.eps)

    def _moments(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances ``[K, C]`` of the rows of each component; running statistics follow in training."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        positions = x[0, 0].numel()
        axes = tuple(range(2, x.dim()))
        every = torch.arange(self.group.components, device=x.device)
        rows = (index.unsqueeze(1) == every).to(wide.dtype)  # [rows, K]; one_hot would look at the numbers
        count = rows.sum(0).unsqueeze(1)  # [K, 1]
        share = rows / count.clamp(min=1).T
        per_row = wide.mean(axes) if axes else wide
        mean = share.T @ per_row
        centre = mean.index_select(0, index).view(*x.shape[:2], *(1,) * len(axes))
        squares = (wide - centre).square()
        var = share.T @ (squares.mean(axes) if axes else squares)
        if self.core.training and self.core.running_mean is not None:
            self._count_batch()
            self._follow(mean.detach(), var.detach(), count * positions)
        return mean, var

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        core, seen = self.core, count > 0
        unbiased = var * count / (count - 1).clamp(min=1)
        for running, now in ((core.running_mean, mean), (core.running_var, unbiased)):
            running.copy_(torch.where(seen, torch.lerp(running, now.to(running.dtype), self._momentum()), running))

    def _count_batch(self) -> None:
        if self.core.training and self.core.num_batches_tracked is not None:
            self.core.num_batches_tracked.add_(1)

    def _momentum(self) -> float:
        """Weight of a batch in the running statistics; without a momentum that of an average over batches."""
        if self.core.momentum is not None:
            return self.core.momentum
        return 1 / max(1, int(self.core.num_batches_tracked))

    def plain_values(self, value: Any) -> dict[str, Tensor]:
        """See `ConvertedLayer`; the statistics are chosen as the scale is."""
        values = super().plain_values(value)
        tracked = {name: self.core._buffers[name] for name in _STATISTICS if self.core._buffers.get(name) is not None}
        # Kept, since what stands for a parameter is known by its id.
        self._chosen = {
            name: RandomParameter(ComponentPoints(each, self.group), None) for name, each in tracked.items()
        }
        return values | {name: value(each) for name, each in self._chosen.items()}

    def plain_module(self, values: dict[str, Tensor]) -> nn.Module:
        """See `ConvertedLayer`."""
        module = super().plain_module(values)
        for name in _STATISTICS:
            if name in values:
                module._buffers[name] = values[name].detach().clone()
        return module

    def _load_plain(self, state: dict[str, Any], prefix: str) -> None:
        for name in _STATISTICS:
            value = state.get(prefix + name)
            if isinstance(value, Tensor) and value.dim() == 1:
                state[prefix + name] = _stacked(value, self.group.components)
        super()._load_plain(state, prefix)


def _stacked(value: Tensor | None, components: int) -> Tensor | None:
    return None if value is None else value.expand(components, *value.shape).clone()
