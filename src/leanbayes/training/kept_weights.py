"""Weights that a training may go back to: those of its best epoch, and those it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from leanbayes.training.checkpoints import FORMAT
from leanbayes.training.errors import OutputError
from leanbayes.training.files import BEST, START, read_state, write_state
from leanbayes.training.history import History
from leanbayes.training.runtime import Runtime


class KeptWeights:
    """Weights in the output folder, or in memory where there is none.

    Args:
        runtime: Where training runs.
        optimizer: The optimiser, without which states of several processes are not whole.
        folder: The output folder.
        wanted: Whether the best weights are gone back to, so that they are kept without a folder, too.
    """

    def __init__(self, runtime: Runtime, optimizer: Optimizer, folder: Path | None, wanted: bool) -> None:
        self.runtime = runtime
        self.optimizer = optimizer
        self.folder = folder
        self.wanted = wanted
        self.best: dict[str, Any] | None = None
        self.start: dict[str, Any] | None = None

    def keep_best(self, record: dict[str, Any]) -> None:
        """Keep the weights of the epoch with this record."""
        if self.folder is not None:
            path = self.folder / BEST
            model, _ = self.runtime.states(self.optimizer)
            self.runtime.on_first(lambda: write_state(path, {"format": FORMAT, "record": record, "model": model}))
        elif self.wanted:
            self.best = self._weights()

    def restore_best(self, history: History) -> None:
        """Go back to the best weights, where there are any."""
        weights = self.best
        if self.folder is not None and (self.folder / BEST).exists():
            best = read_state(self.folder / BEST)
            if best["record"]["epoch"] != history.best["epoch"]:
                raise OutputError(
                    f"{self.folder / BEST} has the weights of epoch {best['record']['epoch']}, but by "
                    f"{history.monitor} epoch {history.best['epoch']} is best; resume with the earlier "
                    "monitor and min_delta"
                )
            weights = best["model"]
        if weights is not None:
            self.runtime.load_states(None, weights, {})

    def keep_start(self) -> None:
        """Keep the weights from before the first step."""
        self.start = self._weights()
        if self.folder is not None:
            path, model = self.folder / START, self.start
            self.runtime.on_first(lambda: write_state(path, {"format": FORMAT, "model": model}))

    def load_start(self) -> None:
        """Go back to the weights from before the first step; a run that was resumed has them in its folder."""
        weights = self.start
        if weights is None:
            path = None if self.folder is None else self.folder / START
            if path is None or not path.exists():
                raise OutputError(f"the run in {self.folder} was started without refit=True; choose another folder")
            weights = read_state(path)["model"]
        self.runtime.load_states(None, weights, {})

    def _weights(self) -> dict[str, Any]:
        model, _ = self.runtime.states(self.optimizer)
        return {key: value.detach().cpu().clone() for key, value in model.items()}
