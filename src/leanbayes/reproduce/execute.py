"""execute: one recipe from its settings to its result file and picture."""

from __future__ import annotations

import datetime
import importlib.util
import io
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes._machine import device_name, versions
from leanbayes.compare.checkpoint import as_json, finite, read_json, write_json
from leanbayes.reproduce.leg import Leg
from leanbayes.reproduce.recipe import PRESETS, Recipe
from leanbayes.reproduce.result import on_generated_data, read_result
from leanbayes.reproduce.run import Run
from leanbayes.training.errors import OutputError
from leanbayes.training.files import prepare_folder, write_bytes

PathLike = str | os.PathLike[str]

_INCHES = (8.0, 4.0)
_DPI = 120
# A result with the same of these, and no new work, keeps where and when it was made.
_SAME_RESULT = ("preset", "settings", "seeds", "rows")
_PROVENANCE = ("command", "device", "versions", "date")


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
        OutputError: If a result that shows more is there, or a folder cannot be written.
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


def execute(
    recipe: Recipe,
    *,
    preset: str = "short",
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "cpu",
    data: PathLike | None = None,
    download: bool = False,
    work: PathLike = "runs/reproduce",
    out: PathLike | None = None,
    limit_s: float | Leg | None = None,
    workers: int = 1,
    replace: bool = False,
    command: str = "",
    progress: bool | None = None,
) -> dict[str, Any]:
    """Run a recipe, or go on with a run that was cut short, and write its result.

    Args:
        recipe: What to run.
        preset: "smoke", "short" or "paper".
        seeds: The recipe's own for the preset where None.
        settings: Values to put in the place of the preset's.
        device: "cpu" or "cuda".
        data: Folder of unpacked data sets.
        download: Whether to fetch public data sets that are not there; a smoke run then uses real data, too.
        work: Folder for what is done on the way, which later legs and other recipes use.
        out: Folder for ``ID.json`` and ``ID.png``; "results", or the work folder for a smoke run, where None.
        limit_s: Seconds that this leg may take, or a leg that several recipes share.
        workers: Processes for pieces of work that are independent, where the recipe has such.
        replace: Whether the result may replace one that shows more: of a larger preset, of more seeds, with the
            preset's own settings, or on real data.
        command: What to note as the command that was run.
        progress: Whether to show progress bars; None shows them on a terminal.

    Returns:
        The content of the result file.

    Raises:
        LegOver: If the time was over first; the same call goes on.
        OutputError: If a result that shows more is there, or a folder cannot be written.
    """
    do = plan(recipe, preset=preset, seeds=seeds, settings=settings, work=work, out=out, replace=replace)
    run = Run(
        recipe.id,
        preset,
        do.settings,
        do.seeds,
        do.folder,
        device=device,
        data=None if data is None else Path(data),
        limit_s=limit_s,
        workers=workers,
        progress=progress,
        download=download,
    )
    with _stopwatch(do.folder / "legs" / f"{recipe.id}.json", device) as legs:
        outcome = recipe.measure(run)
    outcome.notes.extend(note for note in run.notes if note not in outcome.notes)
    result = {
        "id": recipe.id,
        "title": recipe.title,
        "command": command,
        "preset": preset,
        "settings": run.settings,
        "seeds": list(run.seeds),
        "device": device_name(device),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        # Without trainings that another run had done; this one only loaded them.
        "seconds": sum(leg["seconds"] for leg in legs),
        "legs": legs,
        **outcome.to_json(),
    }
    # As the file gives it back, so that the picture can be drawn again from the file.
    result = json.loads(json.dumps(finite(result)))
    if not replace:
        _check_data(do.path, result)
    if run.only_reused:
        result |= _provenance(do.path, result)
    if recipe.draw is not None and can_draw():
        write_bytes(do.path.with_suffix(".png"), picture(recipe, result["figure"]))
    write_json(do.path, result)
    return result


def result_folder(preset: str, work: PathLike, out: PathLike | None) -> Path:
    """Where the result goes: a smoke run has a place of its own, so that it never replaces a real result."""
    if out is not None:
        return Path(out)
    return Path(work) / preset if preset == "smoke" else Path("results")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def picture(recipe: Recipe, figure: Mapping[str, Any]) -> bytes:
    """The PNG file that a recipe draws from the figure data of its result."""
    from matplotlib.figure import Figure

    assert recipe.draw is not None
    canvas = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    recipe.draw(figure, canvas)
    buffer = io.BytesIO()
    # Without the version of matplotlib the same data give the same bytes for longer.
    canvas.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _override(recipe: Recipe, preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the preset with others in their place, each of the kind of the preset's own."""
    chosen = dict(recipe.presets[preset])
    for name, value in settings.items():
        if name not in chosen:
            raise ValueError(f"{recipe.id} has no setting {name!r}; it has {', '.join(chosen) or 'none'}")
        own = chosen[name]
        if not _suits(own, value):
            raise ValueError(
                f"the setting {name} of {recipe.id} is {_kind(own)}, such as {json.dumps(own)}, not {value!r}"
            )
        # 1 for 1.0 would count as another setting for work that is done already.
        chosen[name] = _like(own, value)
    return chosen


def _suits(own: Any, value: Any) -> bool:
    """Whether a value is of the kind of the preset's own, which stands for those that make sense."""
    if isinstance(own, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) > 0 and all(_suits(own[0], item) for item in value)
    if isinstance(own, bool) or not isinstance(own, (int, float)):
        return isinstance(value, type(own))
    numbers = int if isinstance(own, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, numbers) or not math.isfinite(value):
        return False
    return value > 0 or own <= 0


def _like(own: Any, value: Any) -> Any:
    if isinstance(own, (list, tuple)):
        return [_like(own[0], item) for item in value]
    return float(value) if isinstance(own, float) else value


def _kind(own: Any) -> str:
    if isinstance(own, (list, tuple)):
        return f"a list of one item or more, each {_kind(own[0])}"
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
            raise ValueError(f"every seed counts once, and {seed} was given again; leave it out")
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


def _check_data(path: Path, result: Mapping[str, Any]) -> None:
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


def _provenance(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Where and when the work of a result was done that the file already has; empty where it has another."""
    before = read_result(path, (*_SAME_RESULT, *_PROVENANCE))
    if before is None or any(before[name] != result[name] for name in _SAME_RESULT):
        return {}
    return {name: before[name] for name in _PROVENANCE}


@contextmanager
def _stopwatch(path: Path, device: str) -> Iterator[list[dict[str, Any]]]:
    """Notes when, where and how long this leg ran, however it ends; all legs are in the list afterwards."""
    legs = [leg for leg in (read_json(path) or {}).get("legs", []) if "seconds" in leg]
    began = time.monotonic()
    try:
        yield legs
    finally:
        seconds = round(time.monotonic() - began, 1)
        legs.append({"date": datetime.date.today().isoformat(), "device": device_name(device), "seconds": seconds})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"legs": legs})
