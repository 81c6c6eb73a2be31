"""The progress bar."""

from __future__ import annotations

import time
from typing import Any

# Redrawing more often than this shows nothing more.
_SECONDS_BETWEEN_UPDATES = 0.1


class ProgressBar:
    """A bar over all optimiser steps with the remaining time, where there is a terminal.

    Args:
        epochs: Number of epochs.
        steps_per_epoch: Optimiser steps of an epoch, None where that is not known.
        step: Steps that are done.
        show: Whether to show it; None shows it on a terminal.
        console: Where to, rich's own console of standard error where None.
    """

    def __init__(
        self, epochs: int, steps_per_epoch: int | None, step: int = 0, *, show: bool | None = None, console: Any = None
    ) -> None:
        self.epochs = epochs
        self.done = step
        self._next = 0.0
        self._bar: Any = None
        self._task: Any = None
        if show is False:
            return
        from rich.console import Console

        console = Console(stderr=True) if console is None else console
        if show is None and not console.is_terminal:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
            console=console,
        )
        total = None if steps_per_epoch is None else epochs * steps_per_epoch
        self._task = self._bar.add_task("train", total=total, completed=step, values="")
        self._bar.start()

    def step(self, done: int) -> None:
        """Note how many steps are done; redraws now and then."""
        self.done = done
        if self._bar is not None:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + _SECONDS_BETWEEN_UPDATES
                self._bar.update(self._task, completed=done)

    def show(self, epoch: int, values: dict[str, Any]) -> None:
        """Show the epoch and some values."""
        if self._bar is not None:
            text = " ".join(f"{name} {values[name]:.4g}" for name in ("loss", "valid_nll") if name in values)
            description = f"epoch {min(epoch, self.epochs)}/{self.epochs}"
            self._bar.update(self._task, completed=self.done, description=description, values=text)

    def close(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
