"""Methods and priors by name, and their JSON form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)
_REGISTRY: dict[str, type] = {}


def register_posterior(name: str) -> Callable[[C], C]:
    """Class decorator: make a method (or prior) known by `name`, so that it can be saved and loaded."""

    def add(cls: C) -> C:
        if name in _REGISTRY:
            raise ValueError(f"a method or prior named {name!r} is already registered")
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
