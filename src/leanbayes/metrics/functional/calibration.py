"""Calibration: whether predictions made with confidence p come true in a share p of the cases.

Bins of equal width are ``(lower, upper]``, with 0 in the first. Published settings differ: the rank-1 and k-tied papers
take 15 bins and drop none (the defaults); the ensemble model patching paper takes 20 and drops those with at most 5
samples, ``bins=20, min_count=6``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.metrics.functional._inputs import class_probs, positive_int


class ReliabilityTable(NamedTuple):
    """What a reliability diagram shows, one entry per bin; empty bins have NaN confidence and accuracy.

    Attributes:
        lower: Lower ends of the bins, not included.
        upper: Upper ends, included.
        count: Number of examples.
        confidence: Mean confidence.
        accuracy: Share of right predictions.
    """

    lower: Tensor
    upper: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    confidence: Tensor
    accuracy: Tensor


def reliability_table(
    probs: Tensor | Prediction, labels: Tensor, bins: int = 15, *, adaptive: bool = False
) -> ReliabilityTable:
    """Count, mean confidence and accuracy of the most probable class, binned by confidence.

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        bins: Number of bins.
        adaptive: Whether bins hold equally many examples, instead of having equal width.

    Example:
        >>> probs = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> table = reliability_table(probs, torch.tensor([0, 1, 0]), bins=4)
        >>> table.count, table.confidence, table.accuracy
        (tensor([0, 0, 2, 1]), tensor([   nan,    nan, 0.6500, 0.8000]), tensor([   nan,    nan, 0.5000, 1.0000]))
    """
    check_bins(bins)
    confidence, hits = _top_label(probs, labels)
    edges = _equal_mass(confidence, bins) if adaptive else _equal_width(bins, confidence.device)
    return _table(_bin_sums(confidence, hits, edges), edges)


def expected_calibration_error(
    probs: Tensor | Prediction, labels: Tensor, bins: int = 15, *, min_count: int = 1
) -> Tensor:
    r"""Expected calibration error (ECE) of the most probable class, over bins of equal width.

    .. math:: \sum_b \frac{n_b}{N} |\mathrm{accuracy}_b - \mathrm{confidence}_b|

    N counts all examples, those in dropped bins included.

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        bins: Number of bins.
        min_count: Bins with fewer examples are dropped; NaN where none is left.

    Example:
        >>> probs = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> expected_calibration_error(probs, torch.tensor([0, 1, 0]), bins=4)
        tensor(0.1667)
    """
    check_bins(bins, min_count)
    return expected_calibration_error_of(*_top_label(probs, labels), bins, min_count)


def expected_calibration_error_of(confidence: Tensor, hits: Tensor, bins: int = 15, min_count: int = 1) -> Tensor:
    """The same, of confidences ``[N]`` and whether each was right."""
    return _expected(_bin_sums(confidence, hits, _equal_width(bins, confidence.device)), min_count).float()


def max_calibration_error(probs: Tensor | Prediction, labels: Tensor, bins: int = 15, *, min_count: int = 1) -> Tensor:
    r"""Maximum calibration error (MCE) of the most probable class, over bins of equal width.

    .. math:: \max_b |\mathrm{accuracy}_b - \mathrm{confidence}_b|

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        bins: Number of bins.
        min_count: Bins with fewer examples are dropped; NaN where none is left.

    Example:
        >>> probs = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 0])
        >>> max_calibration_error(probs, labels, bins=4), max_calibration_error(probs, labels, bins=4, min_count=2)
        (tensor(0.2000), tensor(0.1500))
    """
    check_bins(bins, min_count)
    return _maximum(_width_sums(probs, labels, bins), min_count).float()


def adaptive_calibration_error(
    probs: Tensor | Prediction, labels: Tensor, bins: int = 15, *, min_count: int = 1
) -> Tensor:
    r"""Adaptive calibration error (ACE): the ECE over bins that hold equally many examples.

    Bin b reaches to the :math:`\lceil b N / B \rceil`-th smallest confidence. Examples of equal confidence share a bin,
    so the order of examples does not matter, and bins may be empty.

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``), or a `Prediction`.
        labels: Labels ``[B]``.
        bins: Number of bins.
        min_count: Bins with fewer examples are dropped; NaN where none is left.

    Example:
        >>> probs = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.3, 0.7], [0.1, 0.9]])
        >>> adaptive_calibration_error(probs, torch.tensor([0, 1, 0, 1]), bins=2)
        tensor(0.1500)
    """
    check_bins(bins, min_count)
    return _adaptive(*_top_label(probs, labels), bins, min_count).float()


def thresholded_calibration_error(
    probs: Tensor | Prediction,
    labels: Tensor,
    bins: int = 15,
    *,
    threshold: float = 0.01,
    adaptive: bool = True,
    min_count: int = 1,
) -> Tensor:
    r"""Thresholded calibration error (TCE): calibration of every class's probability, not only the largest.

    The mean over classes of

    .. math:: \sum_b \frac{n_{bc}}{N_c} |\mathrm{frequency}_{bc} - \mathrm{mean\ probability}_{bc}|

    over the :math:`N_c` examples that give class c at least the threshold, so that a thousand negligible
    probabilities do not hide the rest. Classes without such examples do not count. ``threshold=0, adaptive=False`` is
    the static (class-wise) calibration error.

    Args:
        probs: Probabilities ``[B, C]`` (or of a yes, ``[B]``: two classes), or a `Prediction`.
        labels: Labels ``[B]``.
        bins: Number of bins for each class.
        threshold: Probabilities below it are left out.
        adaptive: Whether bins hold equally many examples, instead of having equal width.
        min_count: Bins with fewer examples are dropped; NaN where none is left in any class.

    Example:
        >>> probs = torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]])
        >>> thresholded_calibration_error(probs, torch.tensor([0, 0]), bins=2)
        tensor(0.5000)
    """
    check_bins(bins, min_count)
    check_threshold(threshold)
    return _classwise(*_entries(probs, labels, threshold), bins, adaptive, min_count).float()


def check_bins(bins: Any, min_count: Any = 1) -> None:
    """Raise unless both are whole numbers above 0."""
    positive_int(bins, "bins")
    positive_int(min_count, "min_count")


def check_threshold(threshold: Any) -> None:
    """Raise unless the threshold is a probability below 1."""
    if not isinstance(threshold, int | float) or not 0 <= threshold < 1:
        raise ValueError(f"threshold is a number from 0 to below 1, not {threshold!r}")


def _top_label(probs: Tensor | Prediction, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence of the most probable class and whether it is right, ``[N]`` each."""
    probs, labels = class_probs(probs, labels)
    confidence, label = probs.max(1)
    return confidence.double(), (label == labels).double()


def _width_sums(probs: Tensor | Prediction, labels: Tensor, bins: int) -> Tensor:
    confidence, hits = _top_label(probs, labels)
    return _bin_sums(confidence, hits, _equal_width(bins, confidence.device))


def _equal_width(bins: int, device: torch.device) -> Tensor:
    """Inner ends of bins of equal width, ``[bins - 1]``."""
    return torch.arange(1, bins, dtype=torch.float64, device=device) / bins


def _equal_mass(values: Tensor, bins: int) -> Tensor:
    """Inner ends of bins that hold equally many values, ``[bins - 1]``."""
    if not len(values):
        return _equal_width(bins, values.device)
    last = (torch.arange(1, bins, device=values.device) * len(values) + bins - 1) // bins - 1
    return values.sort().values[last]


def _bin_sums(values: Tensor, hits: Tensor, edges: Tensor) -> Tensor:
    """Count, sum of values and number of hits of each bin, ``[3, bins]``."""
    # In float32 an end such as 0.2 is the same number as a probability of 0.2, whatever dtype that came in.
    bins = torch.bucketize(values.float(), edges.float())
    columns = torch.stack([torch.ones_like(values), values, hits])
    return columns.new_zeros(3, len(edges) + 1).index_add_(1, bins, columns)


def _table(sums: Tensor, edges: Tensor) -> ReliabilityTable:
    count, values, hits = sums
    return ReliabilityTable(
        lower=torch.cat([edges.new_zeros(1), edges]).float(),
        upper=torch.cat([edges, edges.new_ones(1)]).float(),
        count=count.long(),
        confidence=(values / count).float(),
        accuracy=(hits / count).float(),
    )


def _expected(sums: Tensor, min_count: int) -> Tensor:
    count, values, hits = sums
    kept = count >= min_count
    error = ((hits - values).abs() * kept).sum() / count.sum()
    return torch.where(kept.any(), error, math.nan)


def _maximum(sums: Tensor, min_count: int) -> Tensor:
    count, values, hits = sums
    kept = count >= min_count
    gaps = torch.where(kept, (hits - values).abs() / count, -1.0)
    return torch.where(kept.any(), gaps.max(), math.nan)


def _adaptive(values: Tensor, hits: Tensor, bins: int, min_count: int) -> Tensor:
    return _expected(_bin_sums(values, hits, _equal_mass(values, bins)), min_count)


def _entries(probs: Tensor | Prediction, labels: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of at least the threshold, their classes, and whether those are the labels."""
    probs, labels = class_probs(probs, labels)
    rows, classes = (probs >= threshold).nonzero(as_tuple=True)
    return probs[rows, classes].double(), classes.double(), (labels[rows] == classes).double()


def _classwise(values: Tensor, classes: Tensor, hits: Tensor, bins: int, adaptive: bool, min_count: int) -> Tensor:
    errors = []
    for each in classes.unique():
        own, right = values[classes == each], hits[classes == each]
        edges = _equal_mass(own, bins) if adaptive else _equal_width(bins, values.device)
        errors.append(_expected(_bin_sums(own, right, edges), min_count))
    return torch.stack(errors).nanmean() if errors else values.new_tensor(math.nan)
