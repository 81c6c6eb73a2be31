"""The one generic layer: an op, a posterior, an estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from leanbayes._sampling import Sampling, current_frame, current_sampling, layer_state, own_frame, rows_seen
from leanbayes.estimators import Call, draw, resolve
from leanbayes.estimators.weight import apply_draws
from leanbayes.groups import ComponentGroup
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained, carry_settings
from leanbayes.ops import (
    BagLookup,
    ConvTransposed,
    Dense,
    LinearOp,
    Lookup,
    UnevenRowsError,
    op_for,
    rows_per_sample,
)
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method, fan_in


class BayesianLayer(ConvertedLayer):
    """A module with a random weight: any op, any posterior, any estimator that fits both.

    Args:
        template: The plain module: dense, convolution, transposed convolution, embedding.
        method: What distribution to put on its weight.
        batch_dim: Axis of the examples, None where the sampling state decides.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.

    Example:
        >>> import torch, leanbayes as lb
        >>> layer = lb.nn.BayesianLayer(torch.nn.Linear(3, 2), lb.KTied(rank=2))
        >>> layer(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        template: nn.Module,
        method: Method,
        *,
        batch_dim: int | None = None,
        scope: Scope | None = None,
        path: str = "",
        op: LinearOp | None = None,
    ) -> None:
        super().__init__(template, method, path, batch_dim)
        found = op_for(template) if op is None else op
        if found is None:
            raise TypeError(f"{type(template).__name__} has no linear op; see leanbayes.ops.register_op")
        self.op = found
        carry_settings(template, self)
        scope = scope or Scope(_own_group(method))
        weight: Any = template.weight
        random = self.make_random(weight, found, scope)
        if random.tied:
            self._share(random)
        else:
            self.weight = random
        bias: Any = getattr(template, "bias", None)
        self.bias = self.make_bias(bias, fan_in(weight, found), scope)
        self.ops = tuple(scope.ops.get(id(weight), [found]))
        self.called_once = id(template) in scope.called_once and len(self.ops) == 1
        self.estimator, self.estimator_otherwise = self._resolve(method.wanted_estimator)
        certain = self.estimator == self.estimator_otherwise or not isinstance(found, Dense)
        if certain and len(self.ops) == 1:
            random.used_by = self.estimator_otherwise
            random.features = ((found.in_axis, found.in_features), (found.out_axis, found.out_features))

    def _share(self, random: RandomParameter) -> None:
        """Use the weight of another layer, and its mixing distribution where it has one.

        That layer registers them: torch.func.functional_call breaks modules that are registered in two places.
        """
        self.__dict__["weight"] = random
        if self.mixing is not None:
            del self.mixing
            self.__dict__["mixing"] = random.posterior.group  # pyright: ignore[reportAttributeAccessIssue]

    def _resolve(self, wanted: str) -> tuple[str, str]:
        """The estimator for one vector per example, and that for all other inputs."""
        family = type(self.method).__name__
        return resolve(wanted, self.weight.posterior, self.ops, family, self.called_once)

    def used_estimator(self) -> str:
        """See `Converted`."""
        return self.estimator

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`."""
        return {"weight": "weight"} | ({} if self.bias is None else {"bias": "bias"})

    def extra_repr(self) -> str:
        """The op and the estimator."""
        return f"{self.op}, estimator={self.estimator!r}"

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Draw the output of all rows.

        Args:
            x: The plain module's input.
            *args: Its further arguments: `output_size` of transposed convolutions, `offsets` and
                `per_sample_weights` of embedding bags.
            **kwargs: The same by name.
        """
        spec = layer_state(self)
        op = self.op
        if args or kwargs:
            op = self._with_arguments(x, args, kwargs)
        if not op.batched(x):
            if spec.n > 1:
                raise ValueError(f"{self.path or 'the layer'} got an input without a batch axis, but n={spec.n}")
            if self.draws_mean(spec):
                return self._mean(op, x, spec)
            with rows_seen(1):
                return self._draw(op, x.unsqueeze(0), spec).squeeze(0)
        if self.draws_mean(spec):
            return self._mean(op, x, spec)
        if self.mixing is None:
            return self._draw(op, x, spec)
        with own_frame():
            return self._draw(op, x, spec)

    def _mean(self, op: LinearOp, x: Tensor, spec: Sampling) -> Tensor:
        # The plain module's own call, so that the result is the plain model's bit for bit.
        weight = self.weight.means(spec.n, spec)
        bias = self.bias.means(spec.n, spec) if isinstance(self.bias, RandomParameter) else self.bias
        if weight.dim() == self.weight.dim():
            return op(x, as_trained(weight, self.trained["weight"]), bias)
        return self._by_rows(x, spec, lambda rows, axis, _: apply_draws(op, rows, weight, bias, axis))

    def rows_axis(self, x: Tensor, spec: Sampling) -> int:
        """See `ConvertedLayer`; the op knows which inputs are sequences."""
        return self.op.row_axis(x, spec.batch_dim if self.batch_dim is None else self.batch_dim)

    def _draw(self, op: LinearOp, x: Tensor, spec: Sampling) -> Tensor:
        vector, otherwise = self.estimator, self.estimator_otherwise
        if spec.estimator is not None:
            vector, otherwise = self._resolve(spec.estimator)
        name = vector if vector == otherwise or self._one_vector(x) else otherwise
        zero_mean, weight, bias = self.draws_zero_mean(spec), self.weight, self.bias

        def run(rows: Tensor, axis: int, spec: Sampling) -> Tensor:
            return draw(name, Call(op, rows, weight, bias, spec, axis, zero_mean, self.path))

        return self._by_rows(x, spec, run)

    def _one_vector(self, x: Tensor) -> bool:
        """Whether every row of x is one vector, and an example of the model."""
        return self.op.one_position(x) and not self.shares_draws(x.shape[0])

    def _by_rows(self, x: Tensor, spec: Sampling, run: Callable[[Tensor, int, Sampling], Tensor]) -> Tensor:
        """``run(x, axis of the rows, spec)``; what all rows share is run once per sample."""
        axis = self.rows_axis(x, spec)
        rows = self._rows_to_share(x, spec)
        if rows is None:
            return run(x, axis, spec)
        once = x.expand(*(spec.n if i == axis else -1 for i in range(x.dim())))
        # In predictions fewer rows than the model's are taken for some of them, of any samples; these are known.
        known = spec.replace(marginal=False)
        return run(once, axis, known).repeat_interleave(rows_per_sample(rows, spec.n), axis)

    def _rows_to_share(self, x: Tensor, spec: Sampling) -> int | None:
        """Rows of the folded batch where all of them share one row of indices, such as positions; None where not."""
        if spec.n == 1 or not isinstance(self.op, Lookup) or x.shape[self.rows_axis(x, spec)] != 1:
            return None
        frame = current_frame()
        rows = None if frame is None else frame.rows
        if rows is None or rows in x.shape:
            raise UnevenRowsError(
                f"{self.path or 'the layer'} got indices {tuple(x.shape)} with one row for {spec.n} folded samples; "
                "leave it out with `where`, or draw one sample at a time"
            )
        return rows

    def _with_arguments(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LinearOp:
        template: Any = self.template
        if isinstance(self.op, ConvTransposed):
            sizes = args[0] if args else kwargs.get("output_size")
            padding = template._output_padding(
                x, sizes, template.stride, template.padding, template.kernel_size, self.op.ndim, template.dilation
            )
            return replace(self.op, output_padding=tuple(padding))
        if isinstance(self.op, BagLookup):
            names = ("offsets", "per_sample_weights")
            given = dict(zip(names, args)) | kwargs
            if current_sampling().n > 1 and any(value is not None for value in given.values()):
                raise ValueError("folded samples of an EmbeddingBag need 2-D inputs without offsets and weights")
            return replace(self.op, **given)
        raise TypeError(f"{type(template).__name__} takes one input, got {1 + len(args) + len(kwargs)}")


def _own_group(method: Method) -> ComponentGroup | None:
    """A component group for a layer that stands alone."""
    return ComponentGroup(method.components, "the layer") if method.scope == "model" else None  # pyright: ignore
