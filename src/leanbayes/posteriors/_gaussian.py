"""Gaussian posteriors with independent elements: what mean-field, k-tied and variational dropout have in common."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.noise import full_precision
from leanbayes.posteriors._base import Elementwise, Moments


class GaussianPosterior(Elementwise):
    """Independent elements N(loc, scale^2)."""

    offers = frozenset({"draws", "symmetric", "moments"})
    gaussian = True

    def std(self) -> Tensor:
        """Standard deviation of each element."""
        return self.scale().expand(self.shape)

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self.scale_for(spec) * self.draw_noise((n, *self.shape), self.loc, spec)

    def moments(self) -> Moments:
        """See `Posterior`."""
        return Moments(self.loc, self.std().square())

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Posterior`."""
        std = self.std()
        z = (value - full_precision(self.loc)) / std
        return -0.5 * z.square() - std.log() - 0.5 * math.log(2 * math.pi)

    def log_alpha(self) -> Tensor:
        """Log of alpha = var / mean^2 of each element (finite where the mean is zero)."""
        mean = full_precision(self.loc)
        tiny = torch.finfo(mean.dtype).tiny
        return 2 * self.std().clamp_min(tiny).log() - mean.square().clamp_min(tiny).log()

    def shared_log_alpha(self) -> Tensor:
        """Log alpha as it is shared: all weights share it alike, here every weight has its own."""
        return self.log_alpha()
