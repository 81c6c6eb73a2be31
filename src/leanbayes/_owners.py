"""Who speaks for what: a module offers a method, and whoever needs the whole asks all modules that offer it."""

from __future__ import annotations

from typing import Any

from torch import nn


def owners(model: nn.Module, offer: str) -> list[Any]:
    """The modules of a model that have a method of a name, each once, outermost first.

    What is inside one of them with ``answers_for_parts`` is not asked: that one speaks for it, as an ensemble does for
    its members.
    """
    found: list[Any] = []
    _collect(model, offer, found, set())
    return found


def _collect(module: nn.Module, offer: str, found: list[Any], seen: set[int]) -> None:
    if id(module) in seen:
        return
    seen.add(id(module))
    # Asked of the class: what a module does not have, it takes long to say.
    if hasattr(type(module), offer):
        found.append(module)
        if getattr(type(module), "answers_for_parts", False):
            return
    for child in module._modules.values():
        if child is not None:
            _collect(child, offer, found, seen)
