"""The registry of estimators: functions that draw a layer's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.parameter import RandomParameter

if TYPE_CHECKING:
    from leanbayes.ops import LinearOp


class Estimator(Protocol):
    """Draws ``op(x, w) + b`` for random w (and possibly random b)."""

    def __call__(
        self,
        op: LinearOp,
        x: Tensor,
        weight: RandomParameter,
        bias: RandomParameter | Tensor | None,
        spec: Sampling,
        batch_dim: int,
        zero_mean: bool,
    ) -> Tensor:
        """Draw the output of all rows of x.

        Args:
            op: The layer's op.
            x: Input, its rows at `batch_dim`, samples outermost.
            weight: The random weight.
            bias: A random bias, a point, or None.
            spec: The sampling state.
            batch_dim: Axis of the rows.
            zero_mean: Whether the means of the random weights are dropped.
        """
        ...


_ESTIMATORS: dict[str, Estimator] = {}
# Whether an estimator changes the input's features, which an index has none of.
_SCALES_INPUT: set[str] = set()


def register_estimator(name: str, scales_input: bool = False) -> Callable[[Estimator], Estimator]:
    """Register an estimator by name.

    Args:
        name: What users write.
        scales_input: Whether it multiplies the input's features, so that ops on indices cannot use it.
    """

    def add(function: Estimator) -> Estimator:
        if name in _ESTIMATORS:
            raise ValueError(f"an estimator named {name!r} is registered already")
        _ESTIMATORS[name] = function
        if scales_input:
            _SCALES_INPUT.add(name)
        return function

    return add


def estimator(name: str) -> Estimator:
    """The estimator registered by that name."""
    return _ESTIMATORS[name]


def applicable(offered: tuple[str, ...], op: LinearOp) -> tuple[str, ...]:
    """The estimators among those offered that the op admits, preferred first."""
    from leanbayes.ops import BagLookup

    if isinstance(op, BagLookup):
        # A bag that holds a word twice adds its noise twice: only a drawn weight does that right.
        return tuple(name for name in offered if name == "weight")
    return tuple(name for name in offered if not (op.index_input and name in _SCALES_INPUT))


def resolve(wanted: str, offered: tuple[str, ...], op: LinearOp, family: str) -> str:
    """The estimator to use, or an error that lists those that apply."""
    names = applicable(offered, op)
    if wanted == "auto":
        return names[0]
    if wanted not in names:
        known = "" if wanted in _ESTIMATORS else " (no estimator has that name)"
        kind = type(op).__name__
        raise ValueError(f"estimator {wanted!r} does not apply to {family} on {kind}{known}; it offers {names}")
    return wanted


def bias_draws(bias: RandomParameter | Tensor | None, spec: Sampling, zero_mean: bool) -> Tensor | None:
    """The bias: a point ``[out]``, or draws ``[n, out]``."""
    if not isinstance(bias, RandomParameter):
        return bias
    return bias.deviation(spec.n, spec) if zero_mean else bias.rsample(spec.n, spec)
