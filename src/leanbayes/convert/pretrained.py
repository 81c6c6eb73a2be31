"""`save_pretrained` of converted models: transformers' own writes weights that `from_pretrained` cannot place."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from leanbayes.nn._base import Converted

Writer = Callable[..., None]
_WRITER: list[Writer] = []
_NAME = "save_pretrained"


def writes_pretrained(function: Writer) -> Writer:
    """Decorator: what ``model.save_pretrained(folder, **options)`` of a converted model calls, the model in front."""
    _WRITER[:] = [function]
    return function


class SavePretrained:
    """The method `save_pretrained` of one converted model.

    Args:
        model: The model; held weakly, so that the two are no cycle that keeps a GPU's memory.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)

    def __call__(self, save_directory: Any, *args: Any, **options: Any) -> None:
        """Write the model to a folder."""
        _WRITER[0](self.model(), save_directory, *args, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> SavePretrained:
        model: Any = self.model()
        return SavePretrained(memo.get(id(model), model))

    def __reduce__(self) -> tuple[Any, ...]:
        return SavePretrained, (self.model(),)


def take_over_saving(root: nn.Module) -> None:
    """Let the models of transformers in a converted model, and itself, save what was converted."""
    if isinstance(root, Converted):  # its members hold the values of all of them
        models = [root] if _saves(root.plain_view()) else []
    else:
        models = [module for module in root.modules() if _saves(module)]
    for model in models:
        setattr(model, _NAME, SavePretrained(model))


def give_back_saving(root: nn.Module) -> None:
    """Undo `take_over_saving`."""
    for module in root.modules():
        if isinstance(vars(module).get(_NAME), SavePretrained):
            delattr(module, _NAME)


def _saves(module: nn.Module) -> bool:
    return callable(getattr(type(module), _NAME, None))
