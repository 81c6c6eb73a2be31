"""Values of a JSON file; what is not of the kind that is wanted is absent, never an error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def mapping(raw: Any) -> Mapping[str, Any]:
    """A mapping, empty where it is none."""
    return raw if isinstance(raw, Mapping) else {}


def sequence(raw: Any) -> Sequence[Any]:
    """A list, empty where it is none."""
    return raw if isinstance(raw, list | tuple) else ()


def numbers(raw: Any) -> tuple[float, ...]:
    """The numbers of a list."""
    return tuple(value for value in map(number, sequence(raw)) if value is not None)


def number(raw: Any) -> float | None:
    """A finite number."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    # An integer may be too large for a float.
    return float(raw) if abs(raw) < 1e300 and math.isfinite(raw) else None


def text(raw: Any) -> str:
    """A text, empty where there is none."""
    return raw.strip() if isinstance(raw, str) else "" if raw is None or isinstance(raw, Mapping | list) else str(raw)
