"""samples="auto": predictions grow in stages until their uncertainty settles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes._components import MixturePart, balanced
from leanbayes._inputs import rows
from leanbayes._prediction import Prediction, Statistics, join_statistics
from leanbayes._sampling import Assigned, Sampling, current_sampling
from leanbayes.objectives.likelihoods import Bernoulli

FIRST, MOST = 8, 512
TOLERANCE = 0.01
# Of a loader, which is read once, so many rows decide at least.
DECIDING_ROWS = 1024
_ROUNDING, _TINY = 1e-5, 1e-30


def stage_counts(whole: int = 1) -> tuple[int, ...]:
    """Total numbers of samples after each stage: 8, 16, ..., 512, in whole rounds of so many samples.

    Rounded up, and down where that would be more than 512, but one round at least.

    Example:
        >>> stage_counts(5)
        (10, 20, 35, 65, 130, 260, 510)
    """
    counts: list[int] = []
    size = FIRST
    while size <= MOST:
        total = math.ceil(size / whole) * whole
        counts.append(total if total <= MOST else max(MOST // whole, 1) * whole)
        size *= 2
    return tuple(dict.fromkeys(counts))


def whole_rounds(parts: Sequence[MixturePart]) -> int:
    """The smallest number of samples in which every point of every part can come equally often."""
    common = math.lcm(*(part.points for part in parts))
    return common if common <= MOST else max(part.points for part in parts)


def balanced_stages(parts: Sequence[MixturePart], counts: Sequence[int], state: Sampling) -> dict[int, list[int]]:
    """By group, the components of all samples, such that those which each stage adds are balanced by themselves."""
    index: dict[int, list[int]] = {}
    for before, after in zip((0, *counts), counts):
        # Drawn once for all passes, so that they are spread evenly however the samples are chunked.
        drawn: dict[int, Assigned] = balanced(parts, after - before, torch.zeros(()), state.replace(streams=None))
        for group, given in drawn.items():
            index.setdefault(group, []).extend(int(k) for k in given.index)
    return index


def deciding_blocks(blocks: Iterator[Any], many: bool) -> Iterator[Any]:
    """The blocks of rows that decide on the number of samples: all of an input, the first of a loader."""
    seen = 0
    for block in blocks:
        yield block
        seen += rows(block, current_sampling().batch_dim)
        if many and seen >= DECIDING_ROWS:
            return


class Settling:
    """Tells when more samples do not change the rows' uncertainty any more."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    @torch.no_grad()
    def is_reached(self, parts: list[Statistics]) -> bool:
        """Whether the rows' uncertainty is, on average, within the tolerance of that at the last call.

        Args:
            parts: Sums over all samples so far, block by block.
        """
        now, scale = uncertainty(parts)
        before, self.before = self.before, now
        if before is None:
            return False
        change = (now - before).abs() / scale
        # Rows of NaN settle no more; where there are no others, more samples do not help.
        return not bool(change.nanmean() >= TOLERANCE)


def uncertainty(parts: list[Statistics]) -> tuple[Tensor, Tensor | float]:
    """What has to settle in each row, and the scale on which it does.

    The entropy in nats of predicted classes, as it is; without a likelihood, outputs ``[B, C]`` of two columns or
    more are read as scores. Else the predictive standard deviation, relative to itself.
    """
    joined = join_statistics(parts)
    prediction = Prediction(None, joined.likelihood, joined)
    scores = joined.sums.get("probs")
    classes = scores is not None and (joined.likelihood is not None or scores.shape[-1] > 1)
    if classes or isinstance(joined.likelihood, Bernoulli):
        return prediction.entropy, 1.0
    # A spread within the rounding of the values is none.
    return prediction.std, torch.maximum(prediction.std, _ROUNDING * prediction.mean.abs() + _TINY)
