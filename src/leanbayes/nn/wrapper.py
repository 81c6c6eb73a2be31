"""Any module with drawn weights: its own forward does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from leanbayes._rows import join_rows, pick_samples
from leanbayes._sampling import Sampling, layer_state, own_frame, rows_seen
from leanbayes.estimators import Call, applicable, draw
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained
from leanbayes.nn._replica import call_with
from leanbayes.nn.layer import _own_group
from leanbayes.ops import Dense, LinearOp, rows_per_sample
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method, fan_in


class WrappedLayer(ConvertedLayer):
    """A module whose matrices (and biases, where the method says so) are drawn, one draw per sample for all rows.

    Subclasses that can take the module apart (`takes_apart`) also apply feature scales, one draw per example.

    Args:
        template: The plain module.
        method: What distribution to put on its weights.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.
    """

    takes_apart = False

    def __init__(self, template: nn.Module, method: Method, *, scope: Scope | None = None, path: str = "") -> None:
        super().__init__(template, method, path)
        scope = scope or Scope(_own_group(method))
        self.names = tuple(name for name, _ in template.named_parameters())
        fan = 1
        for name, value in template.named_parameters():
            if value.dim() >= 2:
                op = matrix_op(value)
                fan = fan_in(value, op)
                self.add_module(name, self.make_random(value, op, scope))
            else:
                setattr(self, name, self.make_bias(value, fan, scope))
        self.offered = self._offered()
        self.estimator = self._resolve(method)

    def _resolve(self, method: Method) -> str:
        wanted = method.wanted_estimator
        if wanted == "auto":
            return self.offered[0] if method.per_example else "weight"
        if wanted not in self.offered:
            kind, family = type(self.template).__name__, type(method).__name__
            raise ValueError(f"estimator {wanted!r} does not apply to {family} on {kind}; it offers {self.offered}")
        return wanted

    def _offered(self) -> tuple[str, ...]:
        """Feature scales, where the posteriors and the module admit them, and drawn weights."""
        weights = [part for part in self.children() if isinstance(part, RandomParameter) and part.dim() > 1]
        if not self.takes_apart or not weights:
            return ("weight",)
        ops = [matrix_op(weights[0])]
        scales = [each.name for each in applicable(weights[0].posterior, ops) if each.needs == "factors"]
        return (*scales, "weight")

    def used_estimator(self) -> str:
        """See `Converted`."""
        return self.estimator

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
        spec = layer_state(self)
        x = args[0] if args else next(iter(kwargs.values()))
        rows = x.shape[self.rows_axis(x, spec)] if x.dim() > 1 else 1
        with own_frame() if x.dim() > 1 else rows_seen(1):
            if self.draws_by_example(spec, rows):
                return self.forward_by_example(spec, *args, **kwargs)
            values = self.values(spec)
        if len(values) == 1:
            return call_with(self.template, values[0], args, kwargs)
        if x.dim() == 1:
            raise ValueError(f"{self.path or 'the layer'} got an input without a batch axis, but n={spec.n}")
        axis = self.rows_axis(x, spec)
        rows_per_sample(x.shape[axis], spec.n)
        outputs = [
            call_with(
                self.template, values[s], pick_samples(args, spec.n, [s], axis), pick_samples(kwargs, spec.n, [s], axis)
            )
            for s in range(spec.n)
        ]
        return join_rows(outputs, axis)

    def draws_by_example(self, spec: Sampling, rows: int) -> bool:
        """Whether each example has weights of its own, and not all rows of a sample the same."""
        name = spec.estimator if spec.estimator in self.offered else self.estimator
        shared = spec.joint or self.draws_mean(spec) or self.draws_zero_mean(spec) or self.shares_draws(rows)
        return name != "weight" and not shared

    def forward_by_example(self, spec: Sampling, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, taken apart so that each product is drawn by `product`."""
        raise NotImplementedError

    def product(
        self, x: Tensor, weight: str, bias: str | None, spec: Sampling, op: LinearOp | None = None, axis: int = 0
    ) -> Tensor:
        """``x`` ``[..., in]`` by one of the random matrices, each row on `axis` with its own feature scales."""
        parameter = getattr(self, weight)
        added = None if bias is None else getattr(self, bias)
        return draw(self.offered[0], Call(op or matrix_op(parameter), x, parameter, added, spec, axis, path=self.path))


class BilinearLayer(WrappedLayer):
    """`nn.Bilinear` with drawn weights; feature scales are those of its first input."""

    takes_apart = True

    def forward_by_example(self, spec: Sampling, input1: Tensor, input2: Tensor) -> Tensor:
        """See `WrappedLayer`."""
        rows = [t.unsqueeze(0) if t.dim() == 1 else t for t in (input1, input2)]
        op = _Pairs(input1.shape[-1], self.template.out_features, rows[1])  # pyright: ignore[reportArgumentType]
        bias = "bias" if "bias" in self.names else None
        y = self.product(rows[0], "weight", bias, spec, op, self.rows_axis(input1, spec))
        return y.squeeze(0) if input1.dim() == 1 else y


@dataclass(frozen=True)
class _Pairs(Dense):
    """``x1^T W x2 + b``, linear in W, for one second input."""

    other: Tensor | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        assert self.other is not None
        return nn.functional.bilinear(x, self.other, weight, bias)


def matrix_op(value: Any) -> LinearOp:
    """The op of a weight ``[out, in, ...]`` that some other kernel applies."""
    return Dense(value.shape[1], value.shape[0])
