"""Test images under corruptions."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes import corruptions
from leanbayes.data import Dataset


def corrupted(data: Dataset, kind: str, severity: int, device: torch.device) -> Tensor:
    """All test images under one corruption, scaled as networks take them; the same for every network."""
    pieces = []
    for number, part in enumerate(data.test.tensor().split(1000)):
        shown = corruptions.corrupt(part.to(device).float() / 255, kind, severity, seed=number)
        pieces.append(data.normalisation(shown))
    return torch.cat(pieces)
