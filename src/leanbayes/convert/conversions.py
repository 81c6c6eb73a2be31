"""What conversion has put in a model: its converted parts and their layers, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from leanbayes.nn._base import Converted, ConvertedLayer
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method


@dataclass
class Conversion:
    """A module that was converted by one call, with its layers.

    Attributes:
        path: The module's name in the model, empty for the model itself.
        module: What the call returned.
        ensemble: The method that took the whole module, such as `DeepEnsemble`; None for those of single layers.
        layers: The converted layers by their name in the plain module.
        prefix: What a layer's name in the model has in front of that.
    """

    path: str
    module: nn.Module
    ensemble: Method | None = None
    layers: dict[str, ConvertedLayer] = field(default_factory=dict)
    prefix: str = ""

    @property
    def left(self) -> list[tuple[str, str, str]]:
        """Name, type and reason of what the call left alone."""
        report: Any = getattr(self.module, "leanbayes_report", None)
        return [] if report is None else report.left

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What else there is to know, by layer name."""
        report: Any = getattr(self.module, "leanbayes_report", None)
        if report is not None:
            return report.notes
        # Layers that were built one by one.
        return [(name, note) for name, layer in self.layers.items() for note in layer.notes]


def is_converted(model: nn.Module) -> bool:
    """Whether anything in a model is random or an ensemble."""
    return any(isinstance(module, (Converted, RandomParameter)) for module in model.modules())


def find_conversions(model: nn.Module) -> list[Conversion]:
    """The converted parts of a model, outermost first; layers that were built one by one belong to the model itself."""
    loose = Conversion("", model)
    found: list[Conversion] = []
    seen: set[int] = set()

    def visit(module: nn.Module, name: str, current: Conversion) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        inner = module.inner_model() if isinstance(module, Converted) else None
        if isinstance(module, Converted) and inner is not None:
            path = join(name, next(key for key, child in module._modules.items() if child is inner))
            found.append(Conversion(name, module, module.method, prefix=f"{path}."))
            # The model inside has a report of its own, but it is the outer call that made it.
            collect(inner, path, found[-1])
            return
        if hasattr(module, "leanbayes_report"):
            current = Conversion(name, module, prefix=f"{name}." if name else "")
            found.append(current)
        collect(module, name, current)

    def collect(module: nn.Module, name: str, current: Conversion) -> None:
        if isinstance(module, ConvertedLayer):
            current.layers[f"{name}.".removeprefix(current.prefix).removesuffix(".")] = module
            return
        for child_name, child in module._modules.items():
            if child is not None:
                visit(child, join(name, child_name), current)

    visit(model, "", loose)
    return [part for part in (loose, *found) if part.layers or part.ensemble is not None]


def join(path: str, name: str) -> str:
    """The dotted name of what is called `name` within `path`; either may be empty for the module itself."""
    return f"{path}.{name}" if path and name else path or name
