"""Counting optimiser steps: an objective learns of the steps of the optimiser that trains it, and of no other."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class StepCounter:
    """Calls ``module.after_step()`` after every step of the first optimiser that steps the module's parameters.

    Which optimiser that is shows when one steps. Until then all optimisers of the process are looked at, each once;
    from then on a hook on that one is all that is left.

    Args:
        module: Whose parameters they are.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        # Those of other modules, with the number of their parameters when they were looked at.
        self.others: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self.driver: weakref.ref[Optimizer] | None = None
        _search(self)

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
        hook = _AfterStep(self)
        optimiser.register_step_post_hook(hook)
        self.driver = weakref.ref(optimiser, hook.search_again)
        return True

    def after_step(self) -> None:
        """Pass it on."""
        module: Any = self.module()
        if module is not None:
            module.after_step()


class _AfterStep:
    """Hook of one optimiser, which lasts no longer than the counter."""

    def __init__(self, counter: StepCounter) -> None:
        self.counter = weakref.ref(counter)

    def __call__(self, optimiser: Optimizer, args: Any, kwargs: Any) -> None:
        counter = self.counter()
        if counter is not None:
            counter.after_step()

    def search_again(self, gone: Any) -> None:
        """The optimiser is gone; another may follow."""
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
        _SEARCHING.append(weakref.ref(counter))
        if not _HOOK:
            _HOOK.append(register_optimizer_step_post_hook(_look_at))


def _look_at(optimiser: Optimizer, args: Any, kwargs: Any) -> None:
    if not _SEARCHING:
        return
    found = []
    with _LOCK:
        for reference in list(_SEARCHING):
            counter = reference()
            if counter is not None and counter.look_at(optimiser):
                found.append(counter)
            if counter is None or counter in found:
                _SEARCHING.remove(reference)
    for counter in found:
        counter.after_step()  # the step that showed it


def stop_looking() -> None:
    """Take the hook off all optimisers where nobody searches; not from the hook itself, over which torch iterates."""
    if _HOOK and not _SEARCHING:
        with _LOCK:
            if _HOOK and not _SEARCHING:
                _HOOK.pop().remove()
