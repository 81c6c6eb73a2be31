"""`save_pretrained` of converted models: transformers' own writes weights that `from_pretrained` cannot place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from torch import nn

from leanbayes.nn._base import Converted

Writer = Callable[..., None]
_WRITER: list[Writer] = []


def writes_pretrained(function: Writer) -> Writer:
    """Decorator: what ``model.save_pretrained(folder, **options)`` of a converted model calls, the model in front."""
    _WRITER[:] = [function]
    return function


class SavesConverted:
    """First base of a converted model's class, which is its own class but for how it is saved.

    Attributes:
        plain_class: Its own class.
    """

    plain_class: ClassVar[type]

    def save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> None:
        """Write the model to a folder that `leanbayes.huggingface.from_pretrained` reads."""
        _WRITER[0](self, save_directory, *args, **options)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # No module holds this class, so that a pickle names the model's own.
        return _new, (type(self).plain_class,), self.__getstate__()


@cache
def _saving(kind: type) -> type:
    names = ("__module__", "__qualname__", "__doc__")
    return type(kind.__name__, (SavesConverted, kind), {n: getattr(kind, n) for n in names} | {"plain_class": kind})


def _new(kind: type) -> Any:
    made: Any = _saving(kind)
    return made.__new__(made)


def take_over_saving(root: nn.Module) -> None:
    """Let the models of transformers in a converted model, and itself, save what was converted."""
    if isinstance(root, Converted):  # its members hold the values of all of them
        models = [root] if _saves(root.plain_view()) else []
    else:
        models = [module for module in root.modules() if _saves(module)]
    for model in models:
        if not isinstance(model, SavesConverted):
            model.__class__ = _saving(type(model))


def give_back_saving(root: nn.Module) -> None:
    """Undo `take_over_saving`."""
    for module in root.modules():
        if isinstance(module, SavesConverted):
            module.__class__ = module.plain_class


def _saves(module: nn.Module) -> bool:
    return callable(getattr(type(module), "save_pretrained", None))
