"""Gaussian posteriors with independent elements: what mean-field, k-tied and variational dropout have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from leanbayes import noise
from leanbayes._sampling import Sampling
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._layout import same_layout
from leanbayes.noise import full_precision
from leanbayes.posteriors._base import Elementwise, Moments, each_draw
from leanbayes.posteriors._joined import joined_for, joined_in_pass, pieces, single
from leanbayes.priors import NormalPrior


class GaussianPosterior(Elementwise):
    """Independent elements N(loc, scale^2).

    A family for which there are kernels says so by `fits_kernels` and gives `fused_draws`, `fused_kl` and
    `fused_draws_measured`; they serve large weights where `kernels` are there, with other noise from the same seed.

    Attributes:
        narrow: Whether a kernel may draw in the dtype of autocast, as for what is multiplied in that dtype.
        fewest: Elements from which on a weight is worth a kernel of its own.
    """

    offers = frozenset({"draws", "symmetric", "moments"})
    gaussian = True
    narrow: bool = False
    fewest: ClassVar[int] = 4096

    def std(self) -> Tensor:
        """Standard deviation of each element."""
        scale = self.scale()
        return scale if scale.shape == self.shape else scale.expand(self.shape)

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self._draws(n, spec, True) if self._has_kernels(n, spec) else super().rsample(n, spec)

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        if self._has_kernels(n, spec):
            return self._draws(n, spec, False)
        scale = self.scale_for(spec)
        return each_draw(lambda eps: scale * eps, self.draw_noise((n, *self.shape), self.loc, spec))

    def draw_measured(self, n: int, spec: Sampling, prior: Any, with_mean: bool) -> tuple[Tensor, Tensor] | None:
        """See `Posterior`."""
        if not self._has_kernels(n, spec) or not self.measured_by_kernel(prior):
            return None
        keys, dtype = noise.keys(n, self.loc, spec), self.narrow_dtype() or torch.float32
        return self.fused_draws_measured(keys, with_mean, dtype, prior.mean, prior.std)

    def measured_by_kernel(self, prior: Any) -> bool:
        """Whether a kernel computes the divergence from a prior."""
        if not isinstance(prior, NormalPrior) or not self.is_fused():
            return False
        return not isinstance(prior.mean, Tensor) or same_layout(self.loc, prior.mean)

    def fits_kernels(self) -> bool:
        """Whether `fused_draws` and `fused_kl` can take its parameters as they lie in memory."""
        return False

    def fused_draws(self, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
        """Draws ``[n, *shape]``, less the mean or not, by a kernel whose noise the keys ``[n]`` determine."""
        raise NotImplementedError

    def fused_kl(self, centre: Tensor | float, std: float) -> Tensor:
        """The divergence from N(centre, std^2), summed, by a kernel."""
        raise NotImplementedError

    def fused_draws_measured(
        self, keys: Tensor, with_loc: bool, dtype: torch.dtype, centre: Tensor | float, std: float
    ) -> tuple[Tensor, Tensor]:
        """`fused_draws` and `fused_kl` by one kernel, and their gradients by another."""
        raise NotImplementedError

    def is_fused(self) -> bool:
        """Whether kernels are there for it, and worth their launch."""
        return self.loc.numel() >= self.fewest and fused(self.loc) and self.fits_kernels()

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """See `Posterior`."""
        key = self.join_key() if what in ("draw", "deviation", "mean", "moments") else None
        return None if key is None else (*key, self.narrow)

    @classmethod
    def draw_together(cls, parts: list[Any], what: str, n: int, spec: Sampling) -> Sequence[Tensor]:
        """See `Posterior`; all are rounded at once where autocast would do it one by one."""
        whole = joined_for(parts, spec)
        drawn = whole.rsample(n, spec) if what == "draw" else whole.deviation(n, spec)
        dtype = whole.narrow_dtype()
        return pieces(single(drawn if dtype is None else drawn.to(dtype)), whole.laid_out["loc"])

    @classmethod
    def view_together(cls, parts: list[Any], view: str) -> Sequence[Any]:
        """See `Posterior`."""
        whole = joined_in_pass(parts)
        locs = whole.laid_out["loc"]
        dtype = whole.narrow_dtype()
        means = pieces(whole.loc if dtype is None else whole.loc.to(dtype), locs)
        if view == "mean":
            return means
        var = whole.std().square()
        # float16 has no room for squares.
        variances = pieces(var if dtype is None or dtype == torch.float16 else var.to(dtype), locs)
        return [Moments(*both) for both in zip(means, variances)]

    def _has_kernels(self, n: int, spec: Sampling) -> bool:
        return self.is_fused() and (spec.streams is None or len(spec.streams) == n)

    def _draws(self, n: int, spec: Sampling, with_loc: bool) -> Tensor:
        return self.fused_draws(noise.keys(n, self.loc, spec), with_loc, self.narrow_dtype() or torch.float32)

    def narrow_dtype(self) -> torch.dtype | None:
        """The dtype in which autocast will multiply its draws, where it may draw in that; None elsewhere."""
        device = self.loc.device.type
        if not self.narrow or self.loc.dtype == torch.float64 or not torch.is_autocast_enabled(device):
            return None
        return torch.get_autocast_dtype(device)

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
