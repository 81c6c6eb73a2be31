"""What a run of a recipe will do, and whether it may: settings, seeds, folders, and the result that it replaces."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.compare.checkpoint import as_json
from leanbayes.reproduce.recipe import PRESETS, Recipe
from leanbayes.reproduce.result import on_generated_data, read_result
from leanbayes.training.errors import OutputError
from leanbayes.training.files import prepare_folder

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Plan:
    """What a run will do, once it is known that it may.

    Attributes:
        settings: Those of the preset, with what was overridden.
        seeds: One network or repetition each.
        folder: Where work is kept.
        path: Of the result file.
    """

    settings: dict[str, Any]
    seeds: tuple[int, ...]
    folder: Path
    path: Path


def plan(
    recipe: Recipe,
    *,
    preset: str = "short",
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    work: PathLike = "runs/reproduce",
    out: PathLike | None = None,
    replace: bool = False,
) -> Plan:
    """Check all that `execute` checks before it begins; the arguments are the same.

    Returns:
        What it would do.

    Raises:
        OutputError: If a result that shows more exists, or a folder cannot be written.
        ValueError: If there is no such preset or setting, or a value or seed is none that it can have.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is one of {', '.join(PRESETS)}, not {preset!r}")
    chosen = _override(recipe, preset, settings or {})
    seeds = _checked_seeds(recipe.seeds[preset] if seeds is None else seeds)
    folder = Path(work) / preset
    out = result_folder(preset, work, out)
    path = out / f"{recipe.id}.json"
    if not replace:
        _check_replaces(path, recipe, preset, seeds, chosen)
    prepare_folder(out)
    return Plan(chosen, seeds, prepare_folder(folder), path)


def result_folder(preset: str, work: PathLike, out: PathLike | None) -> Path:
    """Where the result goes: a smoke run has a place of its own, so that it never replaces a real result."""
    if out is not None:
        return Path(out)
    return Path(work) / preset if preset == "smoke" else Path("results")


def _override(recipe: Recipe, preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the preset with others in their place, each of the kind of the preset's own."""
    chosen = dict(recipe.presets[preset])
    for name, value in settings.items():
        if name not in chosen:
            raise ValueError(f"{recipe.id} has no setting {name!r}; it has {', '.join(chosen) or 'none'}")
        own = chosen[name]
        if not _suits(own, value):
            example = "" if own in ((), []) else f", such as {json.dumps(own)}"
            raise ValueError(f"the setting {name} of {recipe.id} is {_kind(own)}{example}, not {value!r}")
        # 1 for 1.0 would count as another setting for work that is done already.
        chosen[name] = _like(own, value)
    return chosen


def _suits(own: Any, value: Any) -> bool:
    """Whether a value is of the kind of the preset's own, which stands for those that make sense."""
    if isinstance(own, (list, tuple)):
        if not isinstance(value, (list, tuple)) or not value:
            return False
        # An empty one says nothing of its items.
        return not own or all(_suits(own[0], item) for item in value)
    if isinstance(own, bool) or not isinstance(own, (int, float)):
        return isinstance(value, type(own))
    numbers = int if isinstance(own, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, numbers) or not math.isfinite(value):
        return False
    return value > 0 or own <= 0


def _like(own: Any, value: Any) -> Any:
    if isinstance(own, (list, tuple)):
        return [_like(own[0], item) for item in value] if own else list(value)
    return float(value) if isinstance(own, float) else value


def _kind(own: Any) -> str:
    if isinstance(own, (list, tuple)):
        return "a list of one item or more" + (f", each {_kind(own[0])}" if own else "")
    if isinstance(own, bool):
        return "true or false"
    if not isinstance(own, (int, float)):
        return "a text"
    number = "a whole number" if isinstance(own, int) else "a number"
    return f"{number} above 0" if own > 0 else number


def _checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if not seeds:
        raise ValueError("seeds are at least one whole number, not an empty list; pass None for the preset's")
    for position, seed in enumerate(seeds):
        # What torch takes as a seed.
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"seeds are whole numbers from 0 to 2**63 - 1, not {seed!r}; choose others")
        if seed in seeds[:position]:
            raise ValueError(f"the seed {seed} was given twice; leave one out")
    return tuple(seeds)


def _check_replaces(path: Path, recipe: Recipe, preset: str, seeds: Sequence[int], settings: Mapping[str, Any]) -> None:
    """Refuse to replace a result that shows more than this run can."""
    before = read_result(path)
    if before is None:
        return
    if PRESETS.index(before["preset"]) > PRESETS.index(preset):
        raise _kept(path, f"a result of the preset {before['preset']}", f"one of the preset {preset}")
    if before["preset"] == "smoke":
        return  # shows that the code runs, which any run shows
    if len(seeds) < len(before["seeds"]):
        raise _kept(path, f"a result of {_seeds(len(before['seeds']))}", f"one of {_seeds(len(seeds))}")
    new = as_json(settings)
    differ = [name for name in new if new[name] != before["settings"].get(name)]
    # The preset's own settings may always come back, and the same changes once more lose nothing.
    if differ and new != as_json(recipe.presets[preset]):
        name = differ[0]
        raise _kept(path, f"a result with {name}={before['settings'].get(name)}", f"one with {name}={new[name]}")


def check_data(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse to replace a result on real data by one on generated data, which only the finished run knows."""
    before = read_result(path)
    if before is not None and on_generated_data(result) and not on_generated_data(before):
        raise _kept(path, "a result on real data", "one on generated data")


def _kept(path: Path, before: str, now: str) -> OutputError:
    return OutputError(
        f"{path} holds {before}, which {now} does not replace unasked; pass --replace, or another folder with --out"
    )


def _seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"
