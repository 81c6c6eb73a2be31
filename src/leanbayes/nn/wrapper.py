"""Any module by functional call: its weights are drawn, its own forward does the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling, own_frame, sampling_of
from leanbayes.methods import Method, fan_in
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained
from leanbayes.nn._rows import join_rows, pick_samples
from leanbayes.nn.layer import _own_group
from leanbayes.ops import Dense, LinearOp, rows_per_sample
from leanbayes.parameter import RandomParameter


class WrappedLayer(ConvertedLayer):
    """A module whose matrices (and biases, where the method says so) are drawn, one draw per sample for all rows.

    Serves `nn.Bilinear` and the recurrent cells, where one draw lasts for a whole forward pass of the model.

    Args:
        template: The plain module.
        method: What distribution to put on its weights.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.
        once: Whether one draw serves all calls during one forward pass of the model.
    """

    def __init__(
        self,
        template: nn.Module,
        method: Method,
        *,
        scope: Scope | None = None,
        path: str = "",
        once: bool = False,
    ) -> None:
        super().__init__(template, method, path)
        scope = scope or Scope(_own_group(method))
        self.names = tuple(name for name, _ in template.named_parameters())
        wanted = method.wanted_estimator
        if wanted not in ("auto", "weight"):
            kind, family = type(template).__name__, type(method).__name__
            raise ValueError(f"estimator {wanted!r} does not apply to {family} on {kind}; it offers ('weight',)")
        fan = 1
        for name, value in template.named_parameters():
            if value.dim() >= 2:
                op = matrix_op(value)
                fan = fan_in(value, op)
                random = self.make_random(value, op, scope)
                random.one_draw_per_forward = once
                self.add_module(name, random)
            else:
                bias = self.make_bias(value, fan, scope)
                if isinstance(bias, RandomParameter):
                    bias.one_draw_per_forward = once
                setattr(self, name, bias)

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`."""
        return {name: name for name in self.names}

    def values(self, spec: Sampling) -> list[dict[str, Tensor]]:
        """The parameters of each sample: one entry where all samples share them, else n."""
        mean, zero_mean = self.draws_mean(spec), self.draws_zero_mean(spec)
        each: list[dict[str, Tensor]] = [{} for _ in range(1 if mean else spec.n)]
        for name in self.names:
            owner = getattr(self, name)
            if not isinstance(owner, RandomParameter):
                drawn = [owner] * len(each)
            elif mean:
                value = as_trained(owner.means(spec.n, spec), self.trained[name])
                stacked = value.dim() > owner.dim()
                if stacked and len(each) == 1:
                    each = [dict(each[0]) for _ in range(spec.n)]
                drawn = list(value) if stacked else [value] * len(each)
            else:
                value = owner.deviation(spec.n, spec) if zero_mean else owner.rsample(spec.n, spec)
                drawn = list(value.to(owner.dtype))
            for values, value in zip(each, drawn):
                values[name] = value
        return each

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The plain module's forward, with drawn parameters, for the rows of each sample."""
        spec = sampling_of(self)
        with own_frame():
            values = self.values(spec)
        if len(values) == 1:
            return torch.func.functional_call(self.template, values[0], args, kwargs)
        x = args[0] if args else next(iter(kwargs.values()))
        if x.dim() == 1:
            raise ValueError(f"{self.path or 'the layer'} got an input without a batch axis, but n={spec.n}")
        axis = self.rows_axis(x, spec)
        rows_per_sample(x.shape[axis], spec.n)
        outputs = [
            torch.func.functional_call(
                self.template, values[s], pick_samples(args, spec.n, [s], axis), pick_samples(kwargs, spec.n, [s], axis)
            )
            for s in range(spec.n)
        ]
        return join_rows(outputs, axis)


def matrix_op(value: Tensor) -> LinearOp:
    """The op of a weight ``[out, in, ...]`` that some other kernel applies."""
    return Dense(value.shape[1], value.shape[0])
