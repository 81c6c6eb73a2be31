"""What the estimators take where nothing else is said: a method by name, batches and epochs by the number of rows."""

from __future__ import annotations

import math

# Sixteen members on a network for tables, see `leanbayes.compare.presets`.
DEFAULT_METHOD = "batch-ensemble"
# Rows up to which batches have so many examples; beyond, they have the most.
_BATCHES = ((1_500, 32), (4_000, 64), (12_000, 128))
_LARGEST_BATCH = 256
# Optimiser steps of the longest training: so many, and one more for every eight rows.
_STEPS, _ROWS_PER_STEP = 3_000, 8
_FEWEST_EPOCHS, _MOST_EPOCHS = 20, 300


def batch_size_for(rows: int) -> int:
    """Examples of an optimiser step: small batches for small tables, whose epochs would be too short otherwise.

    Example:
        >>> [batch_size_for(rows) for rows in (300, 3000, 10_000, 50_000)]
        [32, 64, 128, 256]
    """
    return next((size for most, size in _BATCHES if rows <= most), _LARGEST_BATCH)


def epochs_for(rows: int, batch_size: int) -> int:
    """Epochs after which training ends at the latest: those of 3,000 steps and one for every eight rows, 20 to 300.

    Example:
        >>> [epochs_for(rows, batch_size_for(rows)) for rows in (100, 1000, 10_000, 100_000)]
        [300, 98, 54, 40]
    """
    steps = _STEPS + rows // _ROWS_PER_STEP
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(steps / math.ceil(rows / batch_size))))
