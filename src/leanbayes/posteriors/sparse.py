"""A posterior that is zero, or without noise, but for some entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes._sampling import Sampling
from leanbayes.posteriors._base import Moments, Posterior, inverse_softplus
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors.mean_field import MeanFieldPosterior


class SparsePosterior(Posterior):
    """Independent entries of which all but some are exactly zero, or points.

    Layers see it as a dense weight, so that every estimator works; what is stored are the entries that are left.

    Args:
        kept: The posterior of those entries, over ``[K]``.
        index: Their places in the flattened weight, ``[K]``.
        shape: The weight's shape.
        dense_values: Number of values that the parameters of the dense posterior had.
        points: The other entries, where they are points, with zeros at those places. They are not trained.
    """

    offers = frozenset({"draws", "symmetric", "moments"})
    index: Tensor
    points: Tensor | None

    def __init__(
        self, kept: Posterior, index: Tensor, shape: torch.Size, dense_values: int, points: Tensor | None = None
    ) -> None:
        super().__init__()
        self.kept = kept
        self.gaussian = kept.gaussian
        self.register_buffer("index", index.to(torch.int32 if shape.numel() < 2**31 else torch.int64))
        self.dense_shape = shape
        self.dense_values = dense_values
        self.register_buffer("points", points)
        # As in the dense posterior: `freeze` and `param_groups` tell means from deviations by these names.
        self.original = tuple(f"kept.{name}" for name in kept.original)
        self.outside_kl = tuple(f"kept.{name}" for name in kept.outside_kl)

    @property
    def dense_bytes(self) -> int:
        """Size that the parameters of the dense posterior would have."""
        return self.dense_values * next(self.kept.parameters()).element_size()

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.dense_shape

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self._with_points(self._spread(self.kept.rsample(n, spec)))

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self._spread(self.kept.deviation(n, spec))

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self._with_points(self._spread(self.kept.mean(component)))

    def std(self) -> Tensor:
        """Standard deviation of each element."""
        return self.moments().var.sqrt()

    def moments(self) -> Moments:
        """See `Posterior`."""
        moments = self.kept.moments()
        mean = None if moments.mean is None else self.mean()
        return Moments(mean, self._spread(moments.var))

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`; what was pruned stays what it is."""
        self.kept.set_point_(value.flatten()[self.index.long()])

    def shared_log_alpha(self) -> Tensor:
        """Log alpha of the entries that are left."""
        noisy: Any = self.kept
        return noisy.shared_log_alpha()

    def silence_(self) -> None:
        """See `Posterior`."""
        self.kept.silence_()

    def _with_points(self, dense: Tensor) -> Tensor:
        return dense if self.points is None else dense + self.points

    def _spread(self, values: Tensor) -> Tensor:
        """Put ``[..., K]`` in their places: ``[..., *shape]``."""
        dense = values.new_zeros(*values.shape[:-1], self.shape.numel())
        return dense.index_copy(-1, self.index.long(), values).view(*values.shape[:-1], *self.shape)


@torch.no_grad()
def sparse_copy(posterior: Posterior, index: Tensor, keep_means: bool = False) -> SparsePosterior:
    """The posterior of the entries `index` ``[K]`` of the flattened weight, all others zero or at their means."""
    values = sum(p.numel() for p in posterior.parameters())
    points = None
    # The means of a variance layer are zero anyway.
    if keep_means and posterior.original:
        points = posterior.mean().flatten().index_fill(0, index, 0).view(posterior.shape)
    kept = posterior.entries(index)
    if kept is None:
        assert isinstance(posterior, GaussianPosterior)
        kept = _free_entries(posterior, index)
    for name, parameter in kept.named_parameters():
        means = name in kept.original
        same = (p for other, p in posterior.named_parameters() if (other in posterior.original) == means)
        parameter.requires_grad_(any(p.requires_grad for p in same))
    return SparsePosterior(kept, index, posterior.shape, values, points).train(posterior.training)


def _free_entries(posterior: GaussianPosterior, index: Tensor) -> Posterior:
    """Some entries as they are, each with a standard deviation of its own."""
    free = MeanFieldPosterior(posterior.loc.flatten()[index], init_std=1.0)
    free.raw_std.copy_(inverse_softplus(posterior.std().flatten()[index]))
    return free
