"""Selectors: which modules of a model a rule is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from leanbayes._checks import listed
from leanbayes.nn.foreign_norm import is_foreign_norm
from leanbayes.nn.norm import TORCHS_NORMS, NormLayer

_MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Selector:
    """A predicate ``(name, module) -> bool`` that combines with ``|``, ``&`` and ``~``.

    Args:
        matches: The predicate.
        text: How messages call it.
        exact: Names that it asks for one by one, without a pattern.
    """

    def __init__(self, matches: Callable[[str, nn.Module], bool], text: str, exact: Iterable[str] = ()) -> None:
        self.matches = matches
        self.text = text
        self.exact = frozenset(exact)

    def __call__(self, name: str, module: nn.Module) -> bool:
        """Whether the module of that name is selected."""
        return bool(self.matches(name, module))

    def __or__(self, other: Selector) -> Selector:
        return Selector(_Either(self, other), f"({self} | {other})", self.exact | other.exact)

    def __and__(self, other: Selector) -> Selector:
        return Selector(_Both(self, other), f"({self} & {other})")

    def __invert__(self) -> Selector:
        return Selector(_Not(self), f"~{self}")

    def __repr__(self) -> str:
        return self.text


# Classes and not closures, so that a sampling state that holds a selector can be pickled.
class _Either:
    def __init__(self, *parts: Callable[[str, nn.Module], bool]) -> None:
        self.parts = parts

    def __call__(self, name: str, module: nn.Module) -> bool:
        return any(part(name, module) for part in self.parts)


class _Both(_Either):
    def __call__(self, name: str, module: nn.Module) -> bool:
        return all(part(name, module) for part in self.parts)


class _Not(_Either):
    def __call__(self, name: str, module: nn.Module) -> bool:
        return not self.parts[0](name, module)


class _Named:
    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns

    def __call__(self, name: str, module: nn.Module) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class _Exactly:
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def __call__(self, name: str, module: nn.Module) -> bool:
        return name in self.names


class _Types:
    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.kinds = kinds

    def __call__(self, name: str, module: nn.Module) -> bool:
        # A converted layer still counts as what it was converted from.
        return isinstance(getattr(module, "template", module), self.kinds)


class _Norms:
    def __call__(self, name: str, module: nn.Module) -> bool:
        return _is_norm(module)


def _is_norm(module: nn.Module) -> bool:
    plain = getattr(module, "template", module)
    return isinstance(plain, TORCHS_NORMS) or isinstance(module, NormLayer) or is_foreign_norm(plain)


def named(*patterns: str) -> Selector:
    """Modules whose full name matches one of the globs, such as ``"layer4.*"`` or ``"fc"``."""
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"lb.named takes one or more globs such as 'layer4.*', not {patterns!r}")
    text = f"named({', '.join(map(repr, patterns))})"
    return Selector(_Named(patterns), text, [p for p in patterns if not any(c in p for c in "*?[")])


def exactly(names: Iterable[str]) -> Selector:
    """The modules of these names, which are no patterns."""
    wanted = frozenset(names)
    return Selector(_Exactly(wanted), listed(sorted(wanted)), wanted)


def types(*kinds: type[nn.Module]) -> Selector:
    """Modules of these types and their subclasses."""
    if not kinds or not all(isinstance(kind, type) for kind in kinds):
        raise TypeError(f"lb.types takes one or more module classes such as nn.Linear, not {kinds!r}")
    return Selector(_Types(kinds), f"types({', '.join(kind.__name__ for kind in kinds)})")


def norms() -> Selector:
    """Normalisation layers: batch, layer, RMS, group and instance norms, and lookalikes in other libraries."""
    return Selector(_Norms(), "norms()")


def output(model: nn.Module) -> Selector:
    """The output layer.

    This is what ``get_output_embeddings()`` returns if the model has it, otherwise the last registered dense layer or
    convolution that no norm follows.
    """
    names = output_names(model)
    if not names:
        raise ValueError(
            "no output layer was found (a norm follows every dense layer and convolution); name it with lb.named(...)"
        )
    return Selector(_Named(tuple(names)), f"output({', '.join(names)})")


def output_names(model: nn.Module) -> list[str]:
    """Names of the output layer, none where there is no such layer."""
    head = _declared_output(model)
    if head is None:
        for module in model.modules():
            plain = getattr(module, "template", module)
            if _is_norm(module):
                head = None
            elif isinstance(plain, _MAPS) or type(plain).__name__ == "Conv1D":
                head = module
    return [name for name, module in model.named_modules(remove_duplicate=False) if module is head]


def _declared_output(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    if getter is None:
        return None
    try:
        return getter()
    except NotImplementedError:
        return None
