"""The handwritten digits that scikit-learn carries with it."""

from __future__ import annotations

from pathlib import Path

import torch

from leanbayes.data._assemble import assemble
from leanbayes.data._dataset import Dataset, Part
from leanbayes.data._extras import need
from leanbayes.data._registry import register

# Pixels are counts of dots in 4 x 4 fields.
_LEVELS = 16


@register("digits")
def read_digits(
    root: Path | None = None, *, valid: float = 0.1, test: float = 0.2, seed: int = 0, normalise: str = "standard"
) -> Dataset:
    """1,797 grey images of 8 x 8, floats from 0 to 1; a fifth of each class is held out for test."""
    digits = need("sklearn.datasets", "the digits").load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / _LEVELS
    labels = torch.tensor(digits.target, dtype=torch.int64)
    return assemble(
        "digits",
        "classification",
        "image",
        Part(images, labels),
        valid=valid,
        test_share=test,
        seed=seed,
        normalise=normalise,
        class_names=[str(digit) for digit in range(10)],
    )
