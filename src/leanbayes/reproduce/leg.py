"""Leg: the time that a run may take in one go."""

from __future__ import annotations

import time


class LegOver(Exception):
    """The time of this leg is up; what was done is kept, and the same run continues from there."""


class PartDone(LegOver):
    """The pieces of work that a run was asked for are done, and others remain.

    Attributes:
        open: Names of those.
    """

    def __init__(self, id: str, open: list[str]) -> None:
        super().__init__(f"{id} has open pieces of work: {', '.join(open)}")
        self.open = open


class Leg:
    """A stretch of work with a time limit; it does at least one piece of work, however short the time is.

    Args:
        limit_s: Seconds that it may take; None for no limit.

    Attributes:
        worked: Whether something was done in it.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.worked = False
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def is_over(self, ahead_s: float = 0.0) -> bool:
        """Whether something was done and the time will be over in `ahead_s` seconds."""
        return self.worked and self._deadline is not None and time.monotonic() + ahead_s > self._deadline
