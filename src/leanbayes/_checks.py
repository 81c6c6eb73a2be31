"""Checks of arguments: each raises one sentence that names the argument, what it takes and what came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# How many names a message gives before it counts the others.
_MOST_NAMES = 3


def is_number(value: object) -> bool:
    """Whether a value is a finite real number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_number(owner: object, low: float = -math.inf, high: float = math.inf, **values: float) -> None:
    """Raise where a value is not a finite number within the bounds."""
    for name, value in values.items():
        if not (is_number(value) and low <= value <= high):
            bounds = "" if math.isinf(low) else f" from {low:g}" if math.isinf(high) else f" from {low:g} to {high:g}"
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a number{bounds}, not {value!r}")


def check_positive(owner: object, **values: float) -> None:
    """Raise where a value is not a finite positive number."""
    for name, value in values.items():
        if not (is_number(value) and value > 0):
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a positive number, not {value!r}")


def check_count(owner: object, **values: int) -> None:
    """Raise where a value is not a whole number from 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(owner).__name__}({name}=...) takes a whole number from 1, not {value!r}")


def check_choice(owner: object, choices: tuple[Any, ...], **values: object) -> None:
    """Raise where a value is not among the choices."""
    for name, value in values.items():
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{type(owner).__name__}({name}=...) takes one of {listed}, not {value!r}")


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
