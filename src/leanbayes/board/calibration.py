"""Whether two classifiers differ in their calibration error, which is no mean over examples: by resampling them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from leanbayes.metrics.functional import PairedTest
from leanbayes.metrics.functional.calibration import expected_calibration_error_of

_BINS = 15
_RESAMPLES, _AT_ONCE = 500, 100


def resampled_errors(confidence: Tensor, right: Tensor) -> Tensor:
    """Calibration errors of the same classifier on examples drawn with replacement, the same ones for every classifier.

    Args:
        confidence: Of the most probable class ``[N]``.
        right: Whether that was right ``[N]``.

    Returns:
        Errors ``[500]``.
    """
    count = len(confidence)
    edges = torch.arange(1, _BINS) / _BINS
    gaps = torch.zeros(count, _BINS)
    gaps.scatter_(1, torch.bucketize(confidence.float(), edges)[:, None], (right - confidence).float()[:, None])
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(_RESAMPLES // _AT_ONCE):
        drawn = torch.randint(count, (_AT_ONCE, count), generator=generator)
        times = torch.zeros(_AT_ONCE, count).scatter_add_(1, drawn, torch.ones(_AT_ONCE, count))
        errors.append((times @ gaps).abs().sum(1) / count)
    return torch.cat(errors)


class Calibration(NamedTuple):
    """Calibration errors of a classifier that was trained from S seeds.

    Attributes:
        errors: ``[S]``.
        resampled: On resampled examples ``[S, 500]``.
    """

    errors: Tensor
    resampled: Tensor

    @classmethod
    def of(cls, confidence: Tensor, right: Tensor) -> Calibration:
        """From confidences and whether they were right, ``[S, N]`` each."""
        seeds = list(zip(confidence, right))
        errors = torch.stack([expected_calibration_error_of(*one) for one in seeds])
        return cls(errors.double(), torch.stack([resampled_errors(*one) for one in seeds]).double())


def calibration_test(first: Calibration, second: Calibration) -> PairedTest:
    r"""How many standard errors the calibration errors of two classifiers are apart on the same examples.

    .. math:: z = \frac{\bar d}{\sqrt{\mathrm{Var}_r(\bar d^{(r)}) + \frac{1}{S} \mathrm{Var}_s(d_s)}}

    with the differences :math:`d_s` of the errors, their mean over seeds :math:`\bar d`, and that mean on resampled
    examples :math:`\bar d^{(r)}`; the second term is there for two seeds and more.

    Args:
        first: Of one classifier.
        second: Of the other, on the same examples.

    Returns:
        The difference of the first less the second, and z.
    """
    gaps = first.errors - second.errors
    variance = (first.resampled - second.resampled).mean(0).var()
    if len(gaps) > 1:
        variance = variance + gaps.var() / len(gaps)
    difference = gaps.mean()
    z = difference / variance.sqrt() if variance > 0 else difference.new_zeros(())
    return PairedTest(difference.float(), z.float())
