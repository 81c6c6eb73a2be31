"""What a recipe measures, and the file that keeps it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

# A smoke run shows that everything runs, at a size at which nothing can be said of the result.
HOLDS, FALLS_SHORT, NOT_JUDGED = "holds", "falls short", "not judged"
# What the list shows of a result, and what the page needs besides.
LISTED = ("verdict", "preset", "date", "gap")
SHOWN = (*LISTED, "id", "title", "command", "device", "versions", "seconds", "rows", "checks", "notes")


@dataclass(frozen=True)
class Row:
    """One number beside the published one.

    Attributes:
        name: What was measured: a method, a network, a setting.
        metric: How, with its unit.
        published: The figure in the paper; a text if it is not a number, None if there is none.
        measured: One value per seed.
    """

    name: str
    metric: str
    published: float | str | None
    measured: Sequence[float]

    @classmethod
    def by_metric(
        cls,
        name: str,
        metrics: Mapping[str, str],
        found: Sequence[Mapping[str, Any]],
        published: Iterable[float | str | None] = (),
    ) -> list[Row]:
        """A row for each metric of what was measured.

        Args:
            name: What was measured.
            metrics: How rows call them, by their key in `found`.
            found: One mapping per seed.
            published: Figures of the first metrics, in their order; None where there is none.
        """
        return [
            cls(name, metric, value, [one[key] for one in found])
            for (key, metric), value in zip_longest(metrics.items(), published)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "metric": self.metric,
            "published": self.published,
            "measured": [float(value) for value in self.measured],
        }


@dataclass(frozen=True)
class Check:
    """Something that must hold at any scale.

    Attributes:
        text: What must hold.
        holds: Whether it does.
        gap: How far it is from holding, in words; meaningless if it holds.
    """

    text: str
    holds: bool
    gap: str = ""

    def __post_init__(self) -> None:
        if not self.holds and not self.gap:
            raise ValueError(f"the check {self.text!r} does not hold and must say in words how far it is from that")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"text": self.text, "holds": bool(self.holds), "gap": "" if self.holds else self.gap}


@dataclass(frozen=True)
class Outcome:
    """What a recipe found.

    Attributes:
        rows: Figures beside the published ones.
        checks: What must hold, and whether it does.
        figure: Plain data from which the recipe draws its picture.
        notes: Stand-ins for data, deviations from the published schedule; one sentence each.
    """

    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    figure: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether all checks hold: "holds" or "falls short"."""
        return HOLDS if all(check.holds for check in self.checks) else FALLS_SHORT

    @property
    def gap(self) -> str:
        """How far the failed checks are from holding, in words; empty if all hold."""
        return "; ".join(check.gap for check in self.checks if not check.holds)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as the result file has them."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "checks": [check.to_json() for check in self.checks],
            "verdict": self.verdict,
            "gap": self.gap,
            "notes": list(self.notes),
            "figure": self.figure,
        }


def read_result(path: Path, needed: Iterable[str] = LISTED) -> dict[str, Any] | None:
    """The content of a result file; None where there is none that can be used.

    Args:
        path: Of the file.
        needed: Fields without which it cannot.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and all(name in value for name in needed) else None


def verdict_sentence(result: Mapping[str, Any]) -> str:
    """The verdict as pages say it below a table."""
    said = {HOLDS: "All checks hold.", NOT_JUDGED: "A smoke run, which is not judged."}
    return said.get(result["verdict"], f"It falls short: {result['gap']}.")


def on_generated_data(result: Mapping[str, Any]) -> bool:
    """Whether a result was measured on generated data, as its notes must say, so that no figure is comparable."""
    return any(note.startswith("generated") for note in result.get("notes", ()))


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation of the values that are numbers, as tables show them.

    Example:
        >>> spread([0.5, 0.7]), spread([11689512]), spread([])
        ('0.6 ± 0.14', '11,689,512', '-')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = _number(statistics.fmean(known), digits=4)
    return mean if len(known) == 1 else f"{mean} ± {_number(statistics.stdev(known), digits=2)}"


def published(value: float | str | None) -> str:
    """A published figure as tables show it."""
    return "-" if value is None else value if isinstance(value, str) else _number(value, digits=6)


def _number(value: float, digits: int) -> str:
    # Counts are exact.
    return f"{value:,.0f}" if value == round(value) and abs(value) >= 1000 else f"{value:.{digits}g}"
