"""Log alpha, the noise of a weight relative to its mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.analysis._layers import noisy_layers
from leanbayes.posteriors._base import Posterior


@torch.no_grad()
def log_alpha(model: nn.Module) -> dict[str, Tensor]:
    """Log of ``alpha = var / mean^2`` of each converted layer's weight.

    A layer whose alpha is far above 1 stores what it knows in its variances: its means can be dropped.

    Args:
        model: A converted model.

    Returns:
        By layer name: for variational dropout the rate as it is shared (a scalar, ``[out]``, or one per weight); for
        other Gaussian families one per weight; for a variance layer, whose mean is zero, infinity. For a pruned weight,
        only the entries left.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> net = lb.bayesianize(net, {"0": lb.VariationalDropout(init_log_alpha=-3), "2": lb.VarianceLayer()})
        >>> lb.analysis.log_alpha(net)
        {'0': tensor(-3.), '2': tensor(inf)}
    """
    layers = noisy_layers(model)
    return {name: weight_log_alpha(weight.posterior) for layer in layers for name, weight in layer.weights.items()}


def weight_log_alpha(posterior: Posterior) -> Tensor:
    """Log alpha of one random weight, as it is shared."""
    noisy: Any = posterior
    return noisy.shared_log_alpha().detach().clone()
