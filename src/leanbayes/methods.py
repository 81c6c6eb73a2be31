"""Methods: what users write to say which distribution goes on a layer, and their JSON form."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from leanbayes.groups import ComponentGroup
    from leanbayes.ops import LinearOp
    from leanbayes.posteriors._base import Posterior
    from leanbayes.priors._base import Prior

M = TypeVar("M", bound=type)
_REGISTRY: dict[str, type] = {}


@dataclass(frozen=True)
class Method(ABC):
    """A posterior family with its settings, a prior and an estimator.

    Attributes:
        kinds: The kinds of modules that the family can serve, among "linear", "embedding", "recurrent", "attention",
            "bilinear", "norm", "dropout".
        default_kinds: Those that it serves without `where`.
        scope: Who shares one component index: "model", "layer", or None where there is no mixture or each element
            has its own.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"linear", "embedding", "recurrent", "attention", "bilinear"})
    default_kinds: ClassVar[frozenset[str]] = frozenset({"linear", "recurrent", "attention", "bilinear"})
    scope: ClassVar[str | None] = None

    @abstractmethod
    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """The posterior for a weight `value` under `op` (None for a bias or a norm's scale)."""

    @abstractmethod
    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """The prior for a weight or bias of a layer with `fan` inputs per output, None where there is no KL."""

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """The posterior for a bias, None to leave it a point."""
        return None

    def fallback(self, value: Tensor, op: LinearOp | None) -> tuple[Method, str] | None:
        """Another method for a weight that this one is not made for, with the reason; None where there is none."""
        return None

    @property
    def wanted_estimator(self) -> str:
        """The estimator asked for, "auto" for the best that a layer admits."""
        return getattr(self, "estimator", "auto")


def register_posterior(name: str) -> Callable[[M], M]:
    """Class decorator: make a method (or prior) known by `name`, so that it can be saved and loaded."""

    def add(cls: M) -> M:
        if name in _REGISTRY:
            raise ValueError(f"a method or prior named {name!r} is registered already")
        _REGISTRY[name] = cls
        cls.registered_name = name
        return cls

    return add


register_prior = register_posterior


def registered() -> dict[str, type]:
    """All registered methods and priors by name."""
    return dict(_REGISTRY)


def to_json(value: Any) -> Any:
    """Methods and priors as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = getattr(value, "registered_name", None)
        # A subclass inherits the name, but would come back as its parent.
        if _REGISTRY.get(name or "") is not type(value):
            kind = type(value).__name__
            raise TypeError(
                f"{kind} cannot be saved: it is not registered; decorate it with register_posterior({kind!r})"
            )
        return {"type": name, **{f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`; an unknown type is an error that names it."""
    if isinstance(value, dict):
        fields = dict(value)
        name = fields.pop("type", None)
        if name not in _REGISTRY:
            raise ValueError(f"unknown method or prior {name!r}; this version knows {', '.join(sorted(_REGISTRY))}")
        return _REGISTRY[name](**{key: from_json(item) for key, item in fields.items()})
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    return value


def is_number(value: object) -> bool:
    """Whether a value is a finite real number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_number(owner: object, low: float = -math.inf, high: float = math.inf, **values: float) -> None:
    """Raise where a value is not a finite number within the bounds."""
    for name, value in values.items():
        if not (is_number(value) and low <= value <= high):
            bounds = "" if math.isinf(low) else f" from {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a number{bounds}, not {value!r}")


def check_positive(owner: object, **values: float) -> None:
    """Raise where a value is not a finite positive number."""
    for name, value in values.items():
        if not (is_number(value) and value > 0):
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a positive number, not {value!r}")


def check_count(owner: object, **values: int) -> None:
    """Raise where a value is not a whole number from 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a whole number from 1, not {value!r}")


def check_choice(owner: object, choices: tuple[Any, ...], **values: object) -> None:
    """Raise where a value is not among the choices."""
    for name, value in values.items():
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{type(owner).__name__}({name}=...) takes one of {listed}, not {value!r}")


def check_prior(owner: object, prior: object) -> None:
    """Raise where a prior is no prior."""
    from leanbayes.priors._base import Prior

    if not isinstance(prior, Prior):
        raise TypeError(f"{type(owner).__name__}(prior=...) takes a prior such as lb.Normal(0, 1), not {prior!r}")


def fan_in(value: Tensor, op: LinearOp | None) -> int:
    """Number of weights that one output sums over (1 for a norm's scale and for an embedding)."""
    if op is None or op.index_input:
        return 1
    return max(1, value.numel() // op.out_features)


__all__ = [
    "Method",
    "check_choice",
    "check_count",
    "check_number",
    "check_positive",
    "check_prior",
    "fan_in",
    "from_json",
    "is_number",
    "register_posterior",
    "register_prior",
    "registered",
    "to_json",
]
