"""summary: what was converted, what was left alone and why, and what it costs over the plain model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leanbayes._int8 import Int8Weight
from leanbayes.convert.conversions import Conversion, find_conversions, join
from leanbayes.nn._base import Converted
from leanbayes.posteriors._method import Method

# Longer models show layers whose names differ only in numbers on one line.
_MOST_ROWS = 30
_MOST_NAMES = 3


@dataclass(frozen=True)
class LayerSummary:
    """One converted layer.

    Attributes:
        name: Its name in the plain model.
        type: The plain module's type.
        method: The method that it was converted with.
        estimator: How it draws, None where there is no weight to draw.
        parameters: Number of parameters; what it shares with a layer above is counted there.
        plain_parameters: The plain module's number, counted in the same way.
    """

    name: str
    type: str
    method: Method
    estimator: str | None
    parameters: int
    plain_parameters: int


@dataclass(frozen=True)
class Summary:
    """What conversion did to a model and what it costs; `print` shows it as a table.

    Attributes:
        model: The plain model's type.
        layers: The converted layers.
        left: Name, type and reason of each layer that was left alone.
        notes: Further remarks, each with the name of its layer.
        parameters: Number of parameters, shared ones counted once.
        plain_parameters: That of the plain model.
        bytes: Size of the parameters and buffers.
        plain_bytes: That of the plain model, in the same dtypes.
    """

    model: str
    layers: tuple[LayerSummary, ...]
    left: tuple[tuple[str, str, str], ...]
    notes: tuple[tuple[str, str], ...]
    parameters: int
    plain_parameters: int
    bytes: int
    plain_bytes: int

    @property
    def overhead(self) -> float:
        """Parameters over the plain model's."""
        return self.parameters / self.plain_parameters if self.plain_parameters else 1.0

    @property
    def bytes_overhead(self) -> float:
        """Bytes over the plain model's."""
        return self.bytes / self.plain_bytes if self.plain_bytes else 1.0

    def __str__(self) -> str:
        converted = f"{_count(len(self.layers), 'layer')} converted" if self.layers else "nothing converted"
        left = f", {len(self.left)} left alone" if self.left else ""
        parts = [f"{self.model}: {converted}{left}", _totals(self)]
        if self.layers:
            parts.append(_layer_table(self))
        if self.left:
            reasons = [(name, f"{kind}: {reason}") for name, kind, reason in self.left]
            parts.append("left alone\n" + _by_text(reasons))
        if self.notes:
            parts.append("notes\n" + _by_text(self.notes))
        return "\n\n".join(parts)


def summary(model: nn.Module) -> Summary:
    """What a model's conversion did: layers, methods, parameters, bytes and overhead over the plain model.

    Args:
        model: A converted model; a plain one has no converted layers and no overhead.

    Returns:
        The counts, which print as a table.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
        >>> net = lb.bayesianize(net, lb.KTied(rank=2))
        >>> print(lb.summary(net))
        Sequential: 2 layers converted
        <BLANKLINE>
                     plain     now  overhead
        parameters   1,560   1,820    1.167x
        bytes       6.2 kB  7.3 kB    1.167x
        <BLANKLINE>
        layer  type    method   estimator  plain    now
        0      Linear  KTied()  local      1,050  1,190
        2      Linear  KTied()  local        510    630
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"summary takes an nn.Module, not {type(model).__name__}")
    conversions = find_conversions(model)
    plain = _PlainSizes(model)
    layers: list[LayerSummary] = []
    left: list[tuple[str, str, str]] = []
    notes: list[tuple[str, str]] = []
    seen: set[int] = set()
    for conversion in conversions:
        layers += _rows(conversion, plain, seen)
        path = conversion.path
        if conversion.ensemble is not None and conversion.layers:
            members: Any = conversion.module
            notes.append((path, f"every parameter is stacked for the {members.components} members of the ensemble"))
        left += [(join(path, name), kind, reason) for name, kind, reason in conversion.left]
        notes += [(join(path, name), note) for name, note in conversion.notes]
    # Last: what the layers have not counted is the rest of the model.
    plain.add(model)
    return Summary(
        model=_plain_type(model),
        layers=tuple(layers),
        left=tuple(left),
        notes=tuple(notes),
        parameters=_new_parameters(model, set()),
        plain_parameters=plain.parameters,
        bytes=sum(_elements(t) * t.dtype.itemsize for t in (*model.parameters(), *model.buffers())),
        plain_bytes=plain.bytes,
    )


class _PlainSizes:
    """Counts what the plain form of modules holds, each tensor and each random weight once.

    Args:
        model: The converted model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = 0
        self.bytes = 0
        whole = [m for m in model.modules() if isinstance(m, Converted) and m.inner_model() is not None]
        self.members: dict[int, nn.Module] = {id(m): m.plain_member() for m in whole}
        self._seen: set[int] = set()

    def add(self, module: nn.Module) -> int:
        """Count a module's parameters and buffers, and return how many parameters were new."""
        before = self.parameters
        if self._is_new(module):
            if id(module) in self.members:
                self.add(self.members[id(module)])
            elif hasattr(module, "plain_sizes"):
                for elements, size in module.plain_sizes():  # pyright: ignore[reportCallIssue, reportGeneralTypeIssues]
                    self._count(elements, size, is_parameter=True)
            else:
                self._add_parts(module)
        return self.parameters - before

    def _add_parts(self, module: nn.Module) -> None:
        for tensors, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for tensor in tensors.values():
                if tensor is not None and self._is_new(tensor):
                    self._count(_elements(tensor), tensor.dtype.itemsize, is_parameter)
        for child in module._modules.values():
            if child is not None:
                self.add(child)

    def _count(self, elements: int, size: int, is_parameter: bool) -> None:
        self.parameters += elements if is_parameter else 0
        self.bytes += elements * size

    def _is_new(self, thing: object) -> bool:
        new = id(thing) not in self._seen
        self._seen.add(id(thing))
        return new


def _rows(conversion: Conversion, plain: _PlainSizes, seen: set[int]) -> list[LayerSummary]:
    """The layers of one conversion; an ensemble of plain models is one row."""
    module = conversion.module
    path = conversion.path
    if conversion.ensemble is not None and not conversion.layers:
        counts = (_new_parameters(module, seen), plain.add(module))
        return [LayerSummary(path, _plain_type(module), conversion.ensemble, None, *counts)]
    alone = plain.members.get(id(module), module)
    rows = []
    for name, layer in conversion.layers.items():
        counts = (_new_parameters(layer, seen), plain.add(alone.get_submodule(name)))
        kind = type(layer.template).__name__
        rows.append(LayerSummary(join(path, name), kind, layer.method, layer.used_estimator(), *counts))
    return rows


def _new_parameters(module: nn.Module, seen: set[int]) -> int:
    held = [*module.parameters(), *(m.values for m in module.modules() if isinstance(m, Int8Weight))]
    new = [p for p in held if id(p) not in seen]
    seen.update(id(p) for p in new)
    return sum(_elements(p) for p in new)


def _elements(tensor: Tensor) -> int:
    """Number of elements, none where a lazy module has not run yet."""
    return 0 if is_lazy(tensor) else tensor.numel()


def _plain_type(model: nn.Module) -> str:
    return type(model.plain_view() if isinstance(model, Converted) else model).__name__


def _totals(s: Summary) -> str:
    rows = [
        ["", "plain", "now", "overhead"],
        ["parameters", f"{s.plain_parameters:,}", f"{s.parameters:,}", f"{s.overhead:.3f}x"],
        ["bytes", _size(s.plain_bytes), _size(s.bytes), f"{s.bytes_overhead:.3f}x"],
    ]
    return _table(rows, "<>>>")


def _layer_table(s: Summary) -> str:
    merged: dict[Any, list[LayerSummary]] = {}
    for layer in s.layers:
        name = _numberless(layer.name) if len(s.layers) > _MOST_ROWS else layer.name
        merged.setdefault((name, layer.type, layer.method, layer.estimator), []).append(layer)
    rows = [["layer", "type", "method", "estimator", "plain", "now"]]
    for (name, kind, method, estimator), group in merged.items():
        shown = f"{name} ({len(group)} layers)" if len(group) > 1 else group[0].name
        counts = [sum(g.plain_parameters for g in group), sum(g.parameters for g in group)]
        rows.append([shown or "(model)", kind, _brief(method), estimator or "-", *(f"{c:,}" for c in counts)])
    rest = [
        s.plain_parameters - sum(layer.plain_parameters for layer in s.layers),
        s.parameters - sum(layer.parameters for layer in s.layers),
    ]
    if any(rest):
        rows.append(["(the rest)", "", "", "", *(f"{c:,}" for c in rest)])
    return _table(rows, "<<<<>>")


def _table(rows: list[list[str]], align: str) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _by_text(pairs: Iterable[tuple[str, str]]) -> str:
    """One line per text, with the names that it is about."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name or "(model)")
    return "\n".join(f"  {text} [{_listed(found)}]" for text, found in names.items())


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    # Two names take no more room than "and 2 more" does.
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"


def _numberless(name: str) -> str:
    return ".".join("*" if re.fullmatch(r"\d+", part) else re.sub(r"\d+$", "*", part) for part in name.split("."))


def _brief(method: Method) -> str:
    """A method without the arguments that have their defaults."""
    given = []
    for f in dataclasses.fields(method):
        value = getattr(method, f.name)
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if value != default:
            given.append(f"{f.name}={_brief(value) if isinstance(value, Method) else repr(value)}")
    return f"{type(method).__name__}({', '.join(given)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes any size")
