"""Running a module with other tensors or hooks, on a copy of its objects: no other thread can see the change."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from leanbayes._owners import all_modules

T = TypeVar("T")

# What every module has: tensors, children and hooks, which are copied as such.
_TORCHS_OWN = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in _TORCHS_OWN if "hooks" in name)
# Transformers registers hooks when a model first runs, which would pile up where every replica adds to the same ones.
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_SHORT = 64
# What most attributes are, none of which refers to a module.
_ATOMS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))


def call_with(
    module: nn.Module, values: Mapping[str, Tensor], args: Any, kwargs: Any, *, training: bool | None = None
) -> Any:
    """Call a module with other parameters and buffers; the module itself is left alone.

    Args:
        module: Any module.
        values: Tensors by dotted name.
        args: Positional arguments.
        kwargs: Keyword arguments.
        training: The mode of the module and its parts, its own where None.
    """
    if torch.compiler.is_compiling():
        # What is compiled does not touch the module's tensors, and a replica could not be traced.
        if training is not None:
            module.training = training
        return torch.func.functional_call(module, dict(values), args, kwargs, tie_weights=False)
    copied = replica(module, values)
    if training is not None:
        copied.train(training)
    return copied(*args, **kwargs)


def call_leaf(module: nn.Module, values: dict[str, Tensor], x: Tensor) -> Any:
    """The same for a module of one input that holds its parameters and nothing else: quicker, for inner loops."""
    if torch.compiler.is_compiling():
        return torch.func.functional_call(module, values, (x,), tie_weights=False)
    copied = module.__new__(type(module))
    # Wrappers for several processes put tensors before the parameters of the same names.
    held = {name: value for name, value in module.__dict__.items() if name not in values}
    # Not by the module's own `__setattr__`, which asks a lot of questions first.
    object.__setattr__(copied, "__dict__", held | {"_parameters": {**module._parameters, **values}})
    return copied.forward(x)


def replica(module: nn.Module, values: Mapping[str, Tensor] | None = None, *, own_hooks: bool = False) -> nn.Module:
    """A copy of a module and all that is registered in it, which shares tensors and whatever else it holds.

    Wherever one of the copied modules refers to another, in an attribute, a list or a bound method too, its copy refers
    to the copy. Compiled modules run uncompiled.

    Args:
        module: Any module.
        values: Tensors by dotted name, to be held in the place of the module's own.
        own_hooks: Whether hooks of all kinds can be added to the copies, and not only those that run with forward.
    """
    return _Copier(module, values or {}, own_hooks).root


class _Copier:
    def __init__(self, module: nn.Module, values: Mapping[str, Tensor], own_hooks: bool) -> None:
        originals = list(module.modules())
        self.copies: dict[int, Any] = {id(each): _shallow(each, own_hooks) for each in originals}
        self.open: set[int] = set()
        if values:
            for path, each in module.named_modules():
                self._set_tensors(each, f"{path}." if path else "", values)
        for each in originals:
            if "_orig_mod" in each._modules:  # what torch.compile was given, in the place of what it made of that
                self.copies[id(each)] = self.copies[id(each._orig_mod)]
        for each in originals:
            self._refer_to_copies(self.copies[id(each)])
        self.root: nn.Module = self.copies[id(module)]

    def _set_tensors(self, original: nn.Module, prefix: str, values: Mapping[str, Tensor]) -> None:
        copied = self.copies[id(original)]
        for tensors in (copied._parameters, copied._buffers):
            for name, old in tensors.items():
                new = values.get(prefix + name)
                if new is not None and new is not old:
                    tensors[name] = new
                    # Recurrent modules also keep their weights in a list.
                    self.copies[id(old)] = new

    def _refer_to_copies(self, copied: Any) -> None:
        for name, child in copied._modules.items():
            if child is not None:
                copied._modules[name] = self.copies[id(child)]
        held = copied.__dict__
        values = [(name, value) for name, value in held.items() if type(value) not in _ATOMS]
        for name, value in values:
            if name not in _TORCHS_OWN and name != "_replica_of" and (new := self._copy(value)) is not value:
                held[name] = new

    def _copy(self, value: Any) -> Any:
        """What a copy holds in the place of a value: mostly the value itself."""
        if isinstance(value, (nn.Module, Tensor)):
            return self.copies.get(id(value), value)
        if isinstance(value, types.MethodType):
            owner = self.copies.get(id(value.__self__))
            return value if owner is None else types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            func, args, keywords = (self._copy(part) for part in parts)
            if func is value.func and args is value.args and keywords is value.keywords:
                return value
            return functools.partial(func, *args, **keywords)
        if isinstance(value, (list, tuple, set, frozenset, dict)) and id(value) not in self.open and _may_hold(value):
            self.open.add(id(value))  # a container may hold itself
            try:
                return self._copy_container(value)
            finally:
                self.open.discard(id(value))
        return value

    def _copy_container(self, value: Any) -> Any:
        if isinstance(value, dict):
            items = {key: self._copy(entry) for key, entry in value.items()}
            if all(items[key] is value[key] for key in value):
                return value
            other = value.copy()
            other.update(items)
            return other
        entries = [self._copy(entry) for entry in value]
        if all(new is old for new, old in zip(entries, value)):
            return value
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)


def _may_hold(value: Any) -> bool:
    """Whether a container may hold modules; a long one that begins with words or numbers is a list of such."""
    if len(value) <= _SHORT:
        return True
    first = islice(value.values() if isinstance(value, dict) else value, 8)
    return not all(isinstance(entry, (str, bytes, int, float)) for entry in first)


def _shallow(module: nn.Module, own_hooks: bool) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        return module
    copied = module.__new__(type(module))
    held = module.__dict__.copy()
    for name in ("_parameters", "_buffers", "_modules", *(_HOOKS if own_hooks else _FORWARD_HOOKS)):
        held[name] = held[name].copy()
    held["_compiled_call_impl"] = None
    held["_replica_of"] = (original(module),)  # hidden in a tuple: it is no child
    object.__setattr__(copied, "__dict__", held)  # see `call_leaf`
    return copied


def original(module: nn.Module) -> nn.Module:
    """The module that a replica stands for, or the module itself."""
    return module.__dict__.get("_replica_of", (module,))[0]


def is_compiled(model: nn.Module) -> bool:
    """Whether a model or a part of it was given to `torch.compile`."""
    # Asked in every prediction: a look into the children is quicker than `hasattr`, which a module answers by an
    # exception.
    return any(each._compiled_call_impl is not None or "_orig_mod" in each._modules for each in all_modules(model))


class _Function(nn.Module):
    """A function of a module, as a module: what `functional_call` takes."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self) -> Any:
        return self.function(self.model)


def apply_with(module: nn.Module, values: Mapping[str, Tensor], function: Callable[[nn.Module], T]) -> T:
    """``function(module)`` with other parameters and buffers; the module itself is left alone."""
    if torch.compiler.is_compiling():
        renamed = {f"model.{name}": value for name, value in values.items()}
        return torch.func.functional_call(_Function(module, function), renamed, (), tie_weights=False)
    return function(replica(module, values))
