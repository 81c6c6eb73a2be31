"""Inputs that are too many to be in memory at once."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Rows(Protocol):
    """Examples that are read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Tensor: ...
