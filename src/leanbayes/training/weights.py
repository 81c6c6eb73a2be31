"""Weights out of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from leanbayes.training.files import LAST, read_state

_PREFIX = "model."


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Load the weights of a checkpoint that `fit` wrote.

    Args:
        model: A model like the one that was trained, converted the same way.
        path: An output folder of `fit`, for its last checkpoint, or one of its files (``best.pt``).

    Returns:
        The model.
    """
    file = Path(path) / LAST if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise FileNotFoundError(f"there is no checkpoint {file}")
    state = read_state(file)["model"]
    model.load_state_dict({key.removeprefix(_PREFIX): value for key, value in state.items() if key.startswith(_PREFIX)})
    return model
