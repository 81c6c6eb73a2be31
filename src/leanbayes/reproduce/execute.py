"""execute: one recipe from its settings to its result file and picture."""

from __future__ import annotations

import datetime
import importlib.util
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leanbayes._machine import device_name, versions
from leanbayes.compare.checkpoint import finite, read_json, write_json
from leanbayes.reproduce.leg import Leg
from leanbayes.reproduce.pieces import brought_legs, last_made, machines_note
from leanbayes.reproduce.plan import PathLike, check_data, plan
from leanbayes.reproduce.recipe import Recipe
from leanbayes.reproduce.result import NOT_JUDGED, Outcome, read_result
from leanbayes.reproduce.run import Run
from leanbayes.training.files import write_bytes

_INCHES = (8.0, 4.0)
_DPI = 120
# A result with the same of these, and no new work, keeps where and when it was made.
_SAME_RESULT = ("preset", "settings", "seeds", "rows")
_PROVENANCE = ("command", "device", "versions", "date")


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
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a recipe, or continue a run that was cut short, and write its result.

    Args:
        recipe: What to run.
        preset: "smoke", "short" or "paper".
        seeds: None takes the recipe's own for the preset.
        settings: Values to use instead of the preset's.
        device: "cpu" or "cuda".
        data: Folder of unpacked data sets.
        download: Whether to fetch missing public data sets; a smoke run then uses real data, too.
        work: Folder for intermediate work, which later legs and other recipes use.
        out: Folder for ``ID.json`` and ``ID.png``; "results", or the work folder for a smoke run, where None. Until the
            result is there, finished pieces of work lie in ``units/PRESET/ID`` within, where runs with another work
            folder find them.
        limit_s: Seconds that this leg may take, or a leg that several recipes share.
        workers: Processes for pieces of work that are independent, where the recipe has such.
        replace: Whether the result may replace one that shows more: of a larger preset, of more seeds, with the
            preset's own settings, or on real data.
        command: What to note as the command that was run.
        progress: Whether to show progress bars; None shows them on a terminal.
        only: Patterns of the names of the pieces of work to do, such as ``"*normal-seed0"``; all where there is none.

    Returns:
        The content of the result file; the verdict of a smoke run is "not judged".

    Raises:
        LegOver: If the time was up first; the same call continues.
        PartDone: If `only` left pieces of work to do; a call without it does them.
        OutputError: If a result that shows more exists, or a folder cannot be written.
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
        only=only,
        # A smoke run is done in seconds.
        results=None if preset == "smoke" else do.path.parent,
    )
    with _stopwatch(do.folder / "legs" / f"{recipe.id}.json", device) as legs:
        outcome = recipe.measure(run)
    result = _result(recipe, run, outcome, legs, command)
    if not replace:
        check_data(do.path, result)
    if run.only_reused:
        result |= _provenance(do.path, result) or last_made(run.pieces.used.values())
    if recipe.draw is not None and can_draw():
        write_bytes(do.path.with_suffix(".png"), picture(recipe, result["figure"]))
    write_json(do.path, result)
    run.pieces.discard()
    return result


def _result(
    recipe: Recipe, run: Run, outcome: Outcome, legs: Sequence[Mapping[str, Any]], command: str
) -> dict[str, Any]:
    """The content of the result file, as of a run that did all of its work here and now."""
    outcome.notes.extend(note for note in run.notes if note not in outcome.notes)
    machines = machines_note(run.pieces.used.values())
    if machines is not None:
        outcome.notes.append(machines)
    # What another recipe did is counted there.
    legs = [*brought_legs(piece for (id, _), piece in run.pieces.used.items() if id == recipe.id), *legs]
    result = {
        "id": recipe.id,
        "title": recipe.title,
        "command": command,
        "preset": run.preset,
        "settings": run.settings,
        "seeds": list(run.seeds),
        "device": device_name(run.device),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        # Without trainings that another run had done; this one only loaded them.
        "seconds": sum(leg["seconds"] for leg in legs),
        "legs": legs,
        **outcome.to_json(),
    }
    if run.preset == "smoke":
        result |= {"verdict": NOT_JUDGED, "gap": ""}
    # As the file gives it back, so that the picture can be drawn again from the file.
    return json.loads(json.dumps(finite(result)))


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
