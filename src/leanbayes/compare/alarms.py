"""How far a share of false alarms may be off by chance, as few examples decide it."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.metrics import functional as F

_RESAMPLES, _LEVEL = 200, 0.95


def fpr_interval(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """Between which values FPR95 lies in 95% of resamples of both sides, drawn with replacement (bootstrap).

    Args:
        inside: Scores of familiar examples ``[N]``.
        outside: Scores of others ``[M]``; higher means stranger.

    Example:
        >>> fpr_interval(torch.zeros(50), torch.ones(50)), fpr_interval(torch.zeros(50), torch.zeros(50))
        ((0.0, 0.0), (1.0, 1.0))
    """
    generator = torch.Generator().manual_seed(0)

    def again(scores: Tensor) -> Tensor:
        return scores.flatten()[torch.randint(scores.numel(), (scores.numel(),), generator=generator)]

    rates = [F.ood_fpr(again(inside.cpu()), again(outside.cpu())) for _ in range(_RESAMPLES)]
    ends = torch.tensor([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], dtype=torch.float64)
    low, high = torch.stack(rates).double().quantile(ends).tolist()
    return low, high
