"""metrics.jsonl and TensorBoard's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leanbayes.training.files import append_line, cut

FILE_NAME = "metrics.jsonl"


class Logs:
    """Writes each record as one line of JSON and, if wanted, for TensorBoard.

    Args:
        folder: Where to, None for nowhere.
        tensorboard: Whether to write TensorBoard's files, too.
        size: Bytes of the JSON file that a resumed run keeps; what lies behind is written again.
        step: Optimiser step at which the run goes on; TensorBoard hides what it had behind it.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool = False, size: int = 0, step: int = 0) -> None:
        self.path = None if folder is None else folder / FILE_NAME
        self.writer: Any = None
        if self.path is not None:
            cut(self.path, size)
        if folder is not None and tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ImportError(
                    "TrainConfig(tensorboard=True) needs the package tensorboard: pip install 'leanbayes[train]'"
                ) from None
            self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0

    def write(self, kind: str, record: dict[str, Any]) -> None:
        """Write a record of a `kind`, "step" or "epoch"."""
        if self.path is not None:
            append_line(self.path, json.dumps({"kind": kind, **record}))
        if self.writer is not None:
            for name, value in record.items():
                if name not in ("step", "epoch") and isinstance(value, (int, float)):
                    self.writer.add_scalar(f"{kind}/{name}", value, record["step"])

    def flush(self) -> None:
        """Have TensorBoard's files written up to here."""
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        """Close TensorBoard's files."""
        if self.writer is not None:
            self.writer.close()
