"""What stands in the way of using a table, and the options that solve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class TableError(ValueError):
    """Everything that stands in the way of using a table, in one message.

    Attributes:
        fixes: Options of the reader that solve everything, by name; empty if that takes some thought.
    """

    def __init__(self, message: str, fixes: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fixes = fixes or {}


@dataclass(frozen=True)
class Problem:
    """One thing that stands in the way, and the options that solve it, where some do."""

    text: str
    fixes: dict[str, Any] = field(default_factory=dict)


def raise_all(problems: Sequence[Problem], source: str, given: Mapping[str, Sequence[str]] | None = None) -> None:
    """Raise one error for all problems, where there are any.

    Args:
        problems: What stands in the way.
        source: Name of the file.
        given: Lists among the options that there are already, which stay as far as they go.
    """
    if not problems:
        return
    fixes: dict[str, Any] = {}
    for name, value in (item for problem in problems for item in problem.fixes.items()):
        if name in ("categories", "numbers"):  # without what they should not name
            fixes[name] = [item for item in fixes.get(name, value) if item in value]
        elif isinstance(value, list):
            fixes[name] = list(dict.fromkeys([*fixes.get(name, (given or {}).get(name, ())), *value]))
        else:
            fixes[name] = value
    texts = [problem.text for problem in problems]
    said = texts[0] if len(texts) == 1 else " ".join(f"({n}) {text};" for n, text in enumerate(texts, 1))[:-1]
    head = "" if len(texts) == 1 else f"{source} has {len(texts)} problems: "
    advice = ", ".join(f"{name}={value!r}" for name, value in fixes.items())
    solved = all(problem.fixes for problem in problems)
    raise TableError(head + said + (f"; pass {advice}" if advice else ""), fixes if solved else None)
