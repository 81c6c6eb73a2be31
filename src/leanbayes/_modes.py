"""Eval mode for as long as somebody predicts, also where several threads do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from leanbayes._owners import all_modules

_LOCK = threading.Lock()
# Modules that were in training mode, with the number of predictions that run them in eval mode.
_LENT: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for all modules, each one's own restored when the last prediction of it is over.

    A model in eval mode is not touched.
    """
    lent: list[nn.Module] = []
    with _LOCK:
        for module in all_modules(model):
            if module.training or module in _LENT:
                _LENT[module] = _LENT.get(module, 0) + 1
                module.training = False
                lent.append(module)
    try:
        yield
    finally:
        with _LOCK:
            for module in lent:
                _LENT[module] -= 1
                if _LENT[module] == 0:
                    del _LENT[module]
                    module.training = True
