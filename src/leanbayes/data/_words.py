"""What the name of a column says."""

from __future__ import annotations

import re

_TIMES = (
    "time", "timestamp", "ts", "date", "datetime", "at", "created", "updated", "modified", "posted", "published",
    "epoch", "unix", "unixtime", "utc", "zeit", "zeitstempel", "datum",
)  # fmt: skip


def names_a_time(name: str) -> bool:
    """Whether a name is that of points in time.

    Example:
        >>> [names_a_time(name) for name in ("timestamp", "createdAt", "event_time_ms", "amount")]
        [True, True, True, False]
    """
    return any(word in _TIMES for word in words_of(name))


def words_of(name: str) -> list[str]:
    """The words of a name, also of one in camel case.

    Example:
        >>> words_of("PassengerId"), words_of("Kunden-Nr.")
        (['passenger', 'id'], ['kunden', 'nr'])
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W_]+", spaced.lower())
