"""Batch normalisation of folded samples in training: statistics of each sample, one update per step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leanbayes._sampling import current_sampling
from leanbayes.ops import rows_per_sample


def per_sample_batch_norm(module: Any, x: Tensor, n: int) -> Tensor:
    """Normalise the rows of each of n folded samples by their own statistics.

    The running statistics move once, towards the mean of the samples' statistics.
    """
    channels, rows = x.shape[1], rows_per_sample(x.shape[0], n)
    # Samples become channels: [n * B, C, ...] -> [B, n * C, ...].
    side = x.unflatten(0, (n, rows)).transpose(0, 1).reshape(rows, n * channels, *x.shape[2:])
    weight = None if module.weight is None else module.weight.repeat(n)
    bias = None if module.bias is None else module.bias.repeat(n)
    own = next((t for t in (module.running_mean, module.weight) if t is not None), x)
    means = torch.zeros(n * channels, dtype=own.dtype, device=x.device)
    variances = torch.ones_like(means)
    y = F.batch_norm(side, means, variances, weight, bias, True, 1.0, module.eps)
    if module.track_running_stats and module.running_mean is not None:
        with torch.no_grad():
            module.num_batches_tracked.add_(1)
            momentum = module.momentum
            if momentum is None:
                momentum = 1.0 / float(module.num_batches_tracked)
            module.running_mean.lerp_(means.view(n, channels).mean(0).to(module.running_mean.dtype), momentum)
            module.running_var.lerp_(variances.view(n, channels).mean(0).to(module.running_var.dtype), momentum)
    return y.view(rows, n, channels, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


def use_per_sample_statistics(modules: Iterable[nn.Module]) -> list[Any]:
    """Make batch norms in training use the statistics of each folded sample.

    Returns:
        The modules that were changed, for `use_pooled_statistics`.
    """
    # A module with a forward of its own is one that an enclosing model has changed already.
    changed: list[Any] = [m for m in modules if isinstance(m, _BatchNorm) and m.training and "forward" not in vars(m)]
    for module in changed:
        module.forward = _PerSample(module)
    return changed


def use_pooled_statistics(changed: list[Any]) -> None:
    """Undo `use_per_sample_statistics`."""
    for module in changed:
        del module.forward


class _PerSample:
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        return per_sample_batch_norm(self.module, x, current_sampling().n)
