"""Pieces: finished pieces of work as files, in the work folder and, until their result is there, beside the results."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from leanbayes._machine import versions_text
from leanbayes.compare.checkpoint import read_json, write_json
from leanbayes.reproduce.result import read_result

# A file of a piece that can be used has these.
_NEEDED = {"about", "fingerprints", "notes", "made", "value"}
_FOLDER = "units"
# Of numbers beside the results, which are kept with them; more than float32 has.
_DIGITS = 10


class Pieces:
    """Finished pieces of work of one preset, by the recipe that they are of and their name.

    The work folder is large and stays where it is. Results travel, and so do pieces beside them: a result may be made
    on several machines that share no more than that folder. Once it is there, they go.

    Args:
        work: The work folder of the preset.
        results: Folder of the result files; None keeps nothing there.
        preset: Of the run.

    Attributes:
        used: What a run has done or found so far, by recipe and name; ``brought`` in those of another work folder.
    """

    def __init__(self, work: Path, results: Path | None, preset: str) -> None:
        self._work = work / _FOLDER
        self._begun = work / "begun"
        self._results = results
        self._preset = preset
        self.used: dict[tuple[str, str], dict[str, Any]] = {}

    def find(self, id: str, name: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """A piece for which `fits` holds; one that lies beside the results comes into the work folder."""
        piece = _read(self._work, id, name)
        if piece is not None and fits(piece):
            return piece
        piece = None if self._beside is None else _read(self._beside, id, name)
        if piece is None or not fits(piece):
            return None
        piece = {**piece, "brought": True}
        _write(self._work, id, name, piece)
        return piece

    def use(self, id: str, name: str, piece: dict[str, Any]) -> None:
        """Note that a run builds on a piece, and put it beside the results."""
        self.used[id, name] = piece
        if self._beside is not None:
            _write(self._beside, id, name, _portable(piece), compact=True)

    def keep(self, id: str, name: str, piece: dict[str, Any]) -> None:
        """Write a new piece."""
        _write(self._work, id, name, piece)
        _path(self._begun, id, name).unlink(missing_ok=True)
        self.use(id, name, piece)

    def spent(self, id: str, name: str, about: Any) -> float:
        """Seconds that legs before this one put into a piece that they did not finish."""
        begun = read_json(_path(self._begun, id, name)) or {}
        return begun["spent"] if begun.keys() >= {"about", "spent"} and begun["about"] == about else 0.0

    def begin(self, id: str, name: str, about: Any, seconds: float) -> None:
        """Note the seconds that went into a piece that is not finished."""
        _write(self._begun, id, name, {"about": about, "spent": seconds})

    def discard(self) -> None:
        """Remove from beside the results what the run used and a result there has."""
        if self._results is None or self._beside is None:
            return
        for id, name in self.used:
            result = read_result(self._results / f"{id}.json")
            if result is not None and result["preset"] == self._preset:
                path = _path(self._beside, id, name)
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others are in there
                    path.parent.rmdir()

    @property
    def _beside(self) -> Path | None:
        return None if self._results is None else self._results / _FOLDER / self._preset


def count_pieces(results: Path, id: str) -> dict[str, int]:
    """How many pieces of a recipe lie beside the results, by preset; without presets that have none."""
    return dict(Counter(path.parent.parent.name for path in sorted(results.glob(f"{_FOLDER}/*/{id}/*.json"))))


def brought_legs(pieces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was done in other work folders, as legs: one for each day and machine."""
    legs: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        if "brought" in piece:
            made = piece["made"]
            where = {name: made[name] for name in ("date", "device", "versions")}
            leg = legs.setdefault(json.dumps(where), {**where, "seconds": 0.0, "pieces": 0})
            leg["seconds"] = round(leg["seconds"] + made["seconds"], 1)
            leg["pieces"] += 1
    return sorted(legs.values(), key=lambda leg: leg["date"])


def last_made(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Device, versions and date of the piece that was made last."""
    last = max((piece["made"] for piece in pieces), key=lambda made: made["date"])
    return {name: last[name] for name in ("device", "versions", "date")}


def machines_note(pieces: Iterable[dict[str, Any]]) -> str | None:
    """Says on which machines and with which versions pieces were made, where that differs; None where it does not."""
    counts = Counter(_machine(piece["made"]) for piece in pieces)
    if len(counts) < 2:
        return None
    return "made in pieces: " + "; ".join(f"{count} on {machine}" for machine, count in sorted(counts.items()))


def _machine(made: dict[str, Any]) -> str:
    return f"{made['device']}, {versions_text(made['versions'])}"


def _path(folder: Path, id: str, name: str) -> Path:
    return folder / id / f"{name}.json"


def _read(folder: Path, id: str, name: str) -> dict[str, Any] | None:
    piece = read_json(_path(folder, id, name))
    return piece if piece is not None and piece.keys() >= _NEEDED else None


def _write(folder: Path, id: str, name: str, content: dict[str, Any], *, compact: bool = False) -> None:
    path = _path(folder, id, name)
    if read_json(path) != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content, compact=compact)


def _portable(piece: dict[str, Any]) -> dict[str, Any]:
    """A piece as other machines get it."""
    piece = {key: value for key, value in piece.items() if key != "brought"}
    return piece | {"value": _rounded(piece["value"])}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
