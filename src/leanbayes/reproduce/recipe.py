"""Recipe: how one published result is run, and the list of those there are."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanbayes.reproduce import recipes as package

if TYPE_CHECKING:
    from leanbayes.reproduce.result import Outcome
    from leanbayes.reproduce.run import Run

# From the least to the most that a run can show.
PRESETS = ("smoke", "short", "paper")

_RECIPES: dict[str, Recipe] = {}
_BROKEN: dict[str, Exception] = {}


@dataclass(frozen=True)
class Recipe:
    """One figure or table of a paper as a program.

    Attributes:
        id: Its name in the ledger, such as "vn-toy".
        title: What it shows, in one line.
        presets: Plain settings under "smoke" (seconds on a CPU, shows that the code runs), "short" (about ten minutes
            on one modern GPU) and "paper" (the published schedule).
        seeds: Default seeds of each preset.
        measure: Does the work through a `Run` and returns the outcome.
        draw: Draws the `Outcome.figure` data on an empty matplotlib figure; None if there is no picture.
    """

    id: str
    title: str
    presets: Mapping[str, Mapping[str, Any]]
    seeds: Mapping[str, tuple[int, ...]]
    measure: Callable[[Run], Outcome]
    draw: Callable[[Mapping[str, Any], Any], None] | None = None

    def __post_init__(self) -> None:
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if set(values) != set(PRESETS):
                raise ValueError(f"recipe {self.id!r} needs {name} for {', '.join(PRESETS)}, not {', '.join(values)}")
        if not all(self.seeds.values()):
            raise ValueError(f"recipe {self.id!r} needs at least one seed for each preset")


def register(recipe: Recipe) -> Recipe:
    """Add a recipe to the list; its id must not be taken."""
    if recipe.id in _RECIPES:
        raise ValueError(f"a recipe {recipe.id!r} is already registered; choose another id")
    _RECIPES[recipe.id] = recipe
    return recipe


def recipes() -> dict[str, Recipe]:
    """All recipes by id, in alphabetical order; those of a module that cannot be imported are left out."""
    for name in _modules():
        if name not in _BROKEN:
            try:
                importlib.import_module(f"leanbayes.reproduce.recipes.{name}")
            except Exception as error:
                _BROKEN[name] = error
    return dict(sorted(_RECIPES.items()))


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]


def broken() -> dict[str, Exception]:
    """Why recipes are missing: ids, taken from the names of the modules, with what their import raised."""
    recipes()
    return {name.replace("_", "-"): error for name, error in _BROKEN.items()}
