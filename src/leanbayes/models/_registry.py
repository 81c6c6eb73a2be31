"""The list of models, and how one is built from a name and JSON options."""

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

_CONFIG_ATTRIBUTE = "leanbayes_config"
_BUILDERS: dict[str, Callable[..., nn.Module]] = {}

_Builder = TypeVar("_Builder", bound=Callable[..., nn.Module])


def register(name: str) -> Callable[[_Builder], _Builder]:
    """Adds a class or function to the list of models; a name that is taken is an error."""

    def add(builder: _Builder) -> _Builder:
        if name in _BUILDERS:
            raise ValueError(f"a model named {name!r} is already registered; choose another name")
        _BUILDERS[name] = builder
        return builder

    return add


def names() -> tuple[str, ...]:
    """The names that :func:`create` knows, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def create(name: str, /, **options: Any) -> nn.Module:
    """Builds a model, and records on it how to build it again.

    Args:
        name: One of :func:`names`.
        **options: Arguments of the model; each has a default. Only JSON values, so that the configuration can be saved.

    Returns:
        The model, with ``leanbayes_config = {"name": ..., "options": {...}}``: every option, defaults included, so that
        a saved configuration outlives a changed default.

    Raises:
        ValueError: If there is no such model or option, or a value is not allowed.

    Example:
        >>> model = create("mlp", in_features=4, hidden=(8,), classes=3)
        >>> model.leanbayes_config["options"]["hidden"]
        [8]
        >>> config = model.leanbayes_config
        >>> again = create(config["name"], **config["options"])
    """
    if name not in _BUILDERS:
        raise ValueError(f"there is no model named {name!r}; the models are {', '.join(names())}")
    builder = _BUILDERS[name]
    resolved = _json_values(name, _defaults(builder) | _known(name, builder, options))
    model = builder(**resolved)
    setattr(model, _CONFIG_ATTRIBUTE, {"name": name, "options": resolved})
    return model


def _defaults(builder: Callable[..., nn.Module]) -> dict[str, Any]:
    return {option: parameter.default for option, parameter in inspect.signature(builder).parameters.items()}


def _known(name: str, builder: Callable[..., nn.Module], options: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(builder).parameters
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(f"model {name!r} has no option {unknown[0]!r}; its options are {', '.join(known)}")
    return options


def _json_values(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options as JSON gives them back: tuples become lists, in the first build as in every later one."""
    values = {}
    for option, value in options.items():
        try:
            values[option] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            raise ValueError(f"option {option!r} of model {name!r} must be a JSON value, not {value!r}") from None
    return values
