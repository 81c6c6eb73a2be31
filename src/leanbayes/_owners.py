"""Who speaks for what: a module offers a method, and whoever needs the whole asks all modules that offer it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

_Kind = TypeVar("_Kind", bound=nn.Module)
T = TypeVar("T")


class _Census:
    """What was found in a model of certain modules.

    Attributes:
        modules: Their types and ids, by which it is known whether the model has changed.
        moves: `_Moves.count` when what follows from it was worked out.
        found: Owners by what they offer; weak, so that a model that is its own owner can go.
        instances: Modules by their class, likewise.
        derived: What users of the census have worked out from it.
    """

    def __init__(self, modules: list[Any]) -> None:
        self.modules = modules
        self.moves = _Moves.count
        self.found: dict[str, list[weakref.ref[nn.Module]]] = {}
        self.instances: dict[type, list[weakref.ref[nn.Module]]] = {}
        self.derived: dict[Any, Any] = {}


class _Moves:
    """How often distributions have moved to another dtype, device or memory format, or got other settings.

    That is counted in the whole process.
    """

    count = 0


def note_move() -> None:
    """Let what was worked out from dtypes, devices and settings be worked out again."""
    _Moves.count += 1


class WithSettings(nn.Module):
    """A module of which more is worked out than follows from its type: it notes when a setting is replaced."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Passes set these two: the mode, and tensors where wrappers for several processes put theirs.
        if name != "training" and not isinstance(value, Tensor):
            note_move()


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Census] = weakref.WeakKeyDictionary()


class _Local(threading.local):
    """The models that are not looked through again in this thread, with what was found in them."""

    def __init__(self) -> None:
        self.settled: list[tuple[nn.Module, _Census]] = []


_LOCAL = _Local()


class settled:  # noqa: N801 - reads as prose: with settled(model)
    """Context manager in which a model consists of the same modules: it is looked through once.

    Args:
        model: Any module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.entered = not torch.compiler.is_compiling()

    def __enter__(self) -> None:
        if self.entered:
            _LOCAL.settled.append((self.model, _census(self.model)))

    def __exit__(self, *error: object) -> None:
        if self.entered:
            _LOCAL.settled.pop()


def owners(model: nn.Module, offer: str) -> list[Any]:
    """The modules of a model that have a method of a name, each once, outermost first.

    What is inside one of them with ``answers_for_parts`` is not asked: that one speaks for it, as an ensemble does for
    its members.
    """
    if torch.compiler.is_compiling():  # compilers do not follow weak references
        found: list[Any] = []
        _collect(model, offer, found, set())
        return found
    return _known_owners(_census(model), model, offer)


def instances(model: nn.Module, kind: type[_Kind]) -> list[_Kind]:
    """The modules of a model that are of a class, each once, also those inside of others."""
    census = _census(model)
    known: list[Any] = [reference() for reference in census.instances.get(kind, (_nobody,))]
    if None in known:
        known = [module for module in model.modules() if isinstance(module, kind)]
        census.instances[kind] = [weakref.ref(module) for module in known]
    return known


def derived(model: nn.Module, name: Any, make: Callable[[], T]) -> T:
    """What `make` works out from the modules of a model and what distributions are set to, kept until either changes.

    Args:
        model: Any module.
        name: What it is kept under.
        make: Gives what must not refer to the model itself, which could then never go.
    """
    if torch.compiler.is_compiling():
        return make()
    census = _census(model)
    known = census.derived.get(name, _nobody)
    if known is _nobody:  # another thread may clear all of it at any time
        known = census.derived[name] = make()
    return known


def sorted_owners(model: nn.Module, offer: str, key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """The owners of an offer by a key, those without one (None) left out.

    Args:
        model: Any module.
        offer: Name of a method.
        key: Gives the key of an owner.
    """
    groups: dict[Any, list[Any]] = {}
    for each in owners(model, offer):
        groups.setdefault(key(each), []).append(each)
    groups.pop(None, None)
    return groups


def _known_owners(census: _Census, model: nn.Module, offer: str) -> list[Any]:
    known = [reference() for reference in census.found.get(offer, (_nobody,))]
    if None not in known:
        return known
    # Not asked for yet, or gone: an owner's address may be that of another one of its type by now.
    if offer in census.found:
        census.derived.clear()
    found: list[Any] = []
    _collect(model, offer, found, set())
    census.found[offer] = [weakref.ref(each) for each in found]
    return found


def _nobody() -> None:
    return None


def _census(model: nn.Module) -> _Census:
    for known, census in _LOCAL.settled:
        if known is model:
            return census
    modules = fingerprint(model)
    census = _KNOWN.get(model)
    if census is None or census.modules != modules:
        census = _KNOWN[model] = _Census(modules)
    if census.moves != _Moves.count:
        census.moves = _Moves.count
        census.derived.clear()
    return census


def fingerprint(model: nn.Module) -> list[Any]:
    """Types and ids of all modules in a fixed order: what tells whether a model consists of other modules now."""
    for known, census in _LOCAL.settled:
        if known is model:
            return census.modules
    modules = all_modules(model)
    return [*map(type, modules), *map(id, modules)]


def all_modules(model: nn.Module) -> list[nn.Module]:
    """All modules in a fixed order, with repetitions: much quicker than `nn.Module.modules`."""
    found: list[Any] = [model]
    for module in found:  # which grows meanwhile
        if module is not None and module._modules:
            found += module._modules.values()
    return [module for module in found if module is not None] if None in found else found


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
