"""Which saved model a folder stands for: that of `fit`, or one of those of a comparison."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.cli._errors import UsageError

_MODEL, _RESULT = "model.json", "compare.json"


@dataclass(frozen=True)
class Saved:
    """A folder with one model.

    Attributes:
        folder: Where it stands.
        notes: How it was chosen, one sentence; none where there was no choice.
    """

    folder: Path
    notes: tuple[str, ...] = ()


def find_saved(given: str, method: str | None = None) -> Saved:
    """The model of a folder.

    Args:
        given: What `fit` or `compare` wrote, or a part of it.
        method: Of a comparison; the one that its report recommends where None.

    Returns:
        The folder of one model, that of the first seed.
    """
    folder = Path(given).expanduser()
    if (folder / _RESULT).is_file():
        return _of_comparison(folder, method)
    if method is not None:
        raise UsageError(f"--method chooses one of the methods of a comparison, and {folder} holds no compare.json")
    seeds = _seeds(folder)
    return Saved(seeds[0]) if seeds and not (folder / _MODEL).exists() else Saved(folder)


def _of_comparison(folder: Path, method: str | None) -> Saved:
    try:
        result = json.loads((folder / _RESULT).read_text("utf-8"))
        entries = {entry["name"]: entry for entry in result["methods"] if _seeds(folder / entry["name"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{folder / _RESULT} is damaged; pass the folder of one model, such as {folder}/rank1/seed0"
        ) from None
    if not entries:
        raise UsageError(f"the comparison in {folder} has no trained model yet; finish it with --resume")
    if method is None:
        chosen, why = _recommended(result, list(entries))
        others = ", ".join(name for name in entries if name != chosen)
        notes = (why + (f"; choose another with --method: {others}" if others else ""),)
    else:
        chosen, notes = _named(method, list(entries), folder), ()
    return Saved(_seeds(folder / chosen)[0], notes)


def _recommended(result: dict[str, Any], names: list[str]) -> tuple[str, str]:
    """The method to take, and why."""
    from leanbayes.report.choice import called, learned_nothing, recommended, too_few
    from leanbayes.report.content import parse

    comparison = parse(result)
    entry = recommended(comparison)
    if entry is None or entry.name not in names:
        raise UsageError(f"the report recommends no method; choose one with --method: {', '.join(names)}")
    if len(names) == 1:
        return entry.name, f"this is {called(entry)}, the only method of the comparison"
    if learned_nothing(comparison) or too_few(comparison):
        return entry.name, f"this is {called(entry)}; the report recommends no method yet"
    return entry.name, f"this is {called(entry)}, which the report recommends"


def _named(method: str, names: list[str], folder: Path) -> str:
    if method in names:
        return method
    near = difflib.get_close_matches(method, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
    raise UsageError(f"the comparison in {folder} has no trained model of {method!r}; {hint}")


def _seeds(folder: Path) -> list[Path]:
    """Folders of the seeds that have a model, in order."""
    found = [path.parent for path in folder.glob(f"seed*/{_MODEL}") if path.parent.name[4:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[4:]))
