"""Counting optimiser steps: an objective learns of the steps of the optimiser that trains it, and of no other."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class StepCounter:
    """Calls ``module.after_step()`` after every step of the optimiser that steps the module's parameters.

    Which optimiser that is shows when one steps. Until then all optimisers of the process are looked at, each once;
    from then on a hook on that one is all that is left. Where it has not stepped after as many passes as ever, another
    one may have taken its place, and the next step is looked at again. Of several that step in turn, the first counts.

    Args:
        module: Whose parameters they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        # Those of other modules, with the number of their parameters when they were looked at.
        self.others: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.driver: weakref.ref[Optimizer] | None = None
        # Passes since the last step, and the most that the optimiser has accumulated.
        self.passes, self.most = 0, 1
        _search(self)

    def before_pass(self) -> None:
        """Told of each pass in training."""
        if self.passes >= self.most:
            _search(self)
        self.passes += 1

    def look_at(self, optimiser: Optimizer) -> bool:
        """Take an optimiser that has just stepped for ours if it holds one of the parameters, and say whether."""
        count = sum(len(group["params"]) for group in optimiser.param_groups)
        module = self.module()
        if module is None or self.others.get(optimiser) == count:
            return False
        own = {id(parameter) for parameter in module.parameters()}
        if not any(id(parameter) in own for group in optimiser.param_groups for parameter in group["params"]):
            self.others[optimiser] = count
            return False
        if optimiser not in self.hooked:
            self.hooked.add(optimiser)
            optimiser.register_step_post_hook(_AfterStep(self))
        self.driver = weakref.ref(optimiser, _SearchAgain(self))
        self.most = 1
        return True

    def after_step(self) -> None:
        """Pass it on."""
        self.passes = 0
        _stop_searching(self)
        module: Any = self.module()
        if module is not None:
            module.after_step()


class _OfCounter:
    """What lasts no longer than the counter that it tells."""

    def __init__(self, counter: StepCounter) -> None:
        self.counter = weakref.ref(counter)


class _AfterStep(_OfCounter):
    """Hook of one optimiser."""

    def __call__(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        counter = self.counter()
        if counter is not None and counter.driver is not None and counter.driver() is optimiser:
            counter.most = max(counter.most, counter.passes)
            counter.after_step()


class _SearchAgain(_OfCounter):
    """Told that the optimiser is gone; another may follow."""

    def __call__(self, gone: Any) -> None:
        counter = self.counter()
        if counter is not None:
            _search(counter)


# Reentrant: an optimiser may be collected, and its counter search again, while the lock is held.
_LOCK = threading.RLock()
_SEARCHING: list[weakref.ref[StepCounter]] = []
_HOOK: list[Any] = []


def _search(counter: StepCounter) -> None:
    """Look at every optimiser that steps until the counter has found its own."""
    with _LOCK:
        if not any(reference() is counter for reference in _SEARCHING):
            _SEARCHING.append(weakref.ref(counter))
        if not _HOOK:
            _HOOK.append(register_optimizer_step_post_hook(_look_at))


def _stop_searching(counter: StepCounter) -> None:
    if _SEARCHING:
        with _LOCK:
            _SEARCHING[:] = [reference for reference in _SEARCHING if reference() not in (None, counter)]


def _look_at(optimiser: Optimizer, args: Any, kwargs: Any) -> None:
    if not _SEARCHING:
        return
    found = []
    with _LOCK:
        for reference in list(_SEARCHING):
            counter = reference()
            if counter is None:
                _SEARCHING.remove(reference)
            elif counter.look_at(optimiser):
                found.append(counter)
    for counter in found:
        counter.after_step()  # the step that showed it


def stop_looking() -> None:
    """Take the hook off all optimisers where nobody searches; not from the hook itself, over which torch iterates."""
    if _HOOK and not _SEARCHING:
        with _LOCK:
            if _HOOK and not _SEARCHING:
                _HOOK.pop().remove()
