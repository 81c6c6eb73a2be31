"""Which modules a model calls once in a pass: found by running its forward on symbols, before anything is converted."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from leanbayes.nn._base import skeleton


def called_once(model: nn.Module, modules: Iterable[nn.Module]) -> set[int]:
    """Ids of those modules that the model calls exactly once in training and in eval mode.

    The forward of a copy without values runs on symbols. Where that fails, as in models that look at sizes or values,
    nothing is known and the answer is empty. Unlike `torch.fx.symbolic_trace` it changes no class of torch meanwhile,
    so that other threads can go on.
    """
    wanted = list(modules)
    if any(module is model for module in wanted):
        return {id(model)}
    try:
        counts = [_calls(model, wanted, training) for training in (True, False)]
    except Exception:  # noqa: BLE001 - whatever a forward does with symbols, it says nothing of the model
        return set()
    return {id(module) for module in wanted if all(count[id(module)] == 1 for count in counts)}


def _calls(model: nn.Module, modules: list[nn.Module], training: bool) -> dict[int, int]:
    """How often each module is called in one pass, by id."""
    copied = skeleton(model)
    names = {id(module): name for name, module in model.named_modules()}
    counters = {id(module): _Counter() for module in modules}
    _put(copied, {names[key]: counter for key, counter in counters.items()})
    tracer = _Tracer(copied)
    copied.train(training)
    arguments = {
        name: tracer.create_proxy("placeholder", name, (), {})
        for name, parameter in inspect.signature(copied.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    for counter in counters.values():
        counter.tracer = tracer
    copied.forward(**arguments)
    return {key: counter.calls for key, counter in counters.items()}


class _Tracer(fx.Tracer):
    """Records what happens to symbols; modules of torch stand for themselves."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root = root
        self.graph = fx.Graph(tracer_cls=_Tracer)
        self.tensor_attrs = {}
        for name, module in list(root.named_modules()):
            if name and type(module).__module__.startswith("torch.nn") and not isinstance(module, _CONTAINERS):
                _put(root, {name: _Counter(self)})


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class _Counter(nn.Module):
    """Stands for a module in the copy: counts its calls and gives a symbol for what it would return."""

    def __init__(self, tracer: Any = None) -> None:
        super().__init__()
        self.calls = 0
        self.tracer = tracer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.tracer.create_proxy("call_function", torch.clone, args[:1], {})


def _put(root: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Put modules in the places of those that have these names, in all places of each."""
    new = {id(root.get_submodule(name)): module for name, module in modules.items()}
    for holder in list(root.modules()):
        for name, child in holder._modules.items():
            if id(child) in new:
                holder._modules[name] = new[id(child)]
