"""Every place in a model that holds a module: registered children, plain attributes, and containers in these."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from leanbayes.convert.conversions import join

# Hooks, buffers and the like; the children among them are looked into by name.
_TORCHS_OWN = frozenset(vars(nn.Module()))


class Replacement:
    """The changes that put new modules in all places of old ones; nothing changes before `apply`.

    A model may also keep its children in a plain list, tuple, dictionary, set or unregistered module. Left
    there, the old ones would run in place of the new.

    Args:
        model: The model; it may be one of the old modules itself.
        new: The new modules by id of the old ones.
    """

    def __init__(self, model: nn.Module, new: Mapping[int, nn.Module]) -> None:
        self.new = new
        self._changes: list[Callable[[], Any]] = []
        self._seen: set[int] = set()
        self._root = self._replaced(model, "")

    def apply(self) -> nn.Module:
        """Make the changes and return the model, which is new where it was one of the old modules."""
        for change in self._changes:
            change()
        return self._root

    def _replaced(self, value: Any, where: str) -> Any:
        """What goes in the place of a value: mostly itself, with changes noted for what it holds."""
        if id(value) in self.new:
            return self.new[id(value)]
        if isinstance(value, (tuple, frozenset)):
            entries = [self._replaced(entry, where) for entry in value]
            if not _differ(entries, value):
                return value
            return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
        # The rest keeps its identity, and may hold itself.
        if id(value) in self._seen:
            return value
        self._seen.add(id(value))
        if isinstance(value, nn.Module):
            self._look_into(value._modules, value._modules, lambda name: join(where, name))
            plain = {name: held for name, held in vars(value).items() if name not in _TORCHS_OWN}
            self._look_into(vars(value), plain, lambda name: join(where, name))
        elif isinstance(value, dict):
            self._look_into(value, value, lambda key: where)
        elif isinstance(value, (list, set)):
            entries = [self._replaced(entry, where) for entry in value]
            if _differ(entries, value):
                fill = value.extend if isinstance(value, list) else value.update
                self._changes.append(lambda: (value.clear(), fill(entries)))
        else:
            self._check(value, where)
        return value

    def _look_into(self, owner: dict[Any, Any], entries: dict[Any, Any], where: Callable[[Any], str]) -> None:
        """Note the changes of some entries of a dictionary."""
        for key, value in entries.items():
            new = self._replaced(value, where(key))
            if new is not value:
                self._changes.append(functools.partial(owner.__setitem__, key, new))

    def _check(self, holder: Any, where: str) -> None:
        """Raise where something that cannot be changed holds an old module."""
        for value in _held(holder):
            if self._replaced(value, where) is not value:
                raise ValueError(
                    f"{where} is a {type(holder).__name__} that holds a {type(value).__name__}, which cannot be "
                    "replaced there; keep the layer itself there, or a list, tuple or dict of layers"
                )


def _held(value: Any) -> Iterable[Any]:
    """What is held by things that do not let go of it."""
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MappingProxyType):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()


def _differ(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return any(a is not b for a, b in zip(new, old))
