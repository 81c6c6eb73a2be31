"""Distributions of rank-1 factors beside the normal: Cauchy, log-normal and half-Cauchy."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes import noise
from leanbayes.noise import full_precision
from leanbayes.posteriors._base import Elementwise, initial_raw
from leanbayes.posteriors._divergence import register_kl
from leanbayes.posteriors.mean_field import SILENT
from leanbayes.priors import Cauchy, HalfCauchy, LogNormal, NormalPrior


class CauchyPosterior(Elementwise):
    """Cauchy(loc, scale); its "mean" is the location."""

    elementwise = True
    heavy_tailed = True
    draw_noise = staticmethod(noise.cauchy)

    def __init__(self, loc: Tensor, scale: float) -> None:
        super().__init__(loc)
        self.raw_scale = initial_raw(self.loc, scale)

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        return F.softplus(full_precision(self.raw_scale))

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        self.raw_scale.fill_(SILENT)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Posterior`."""
        scale = self.scale()
        z = (value - full_precision(self.loc)) / scale
        return -(math.pi * scale).log() - torch.log1p(z.square())


class LogNormalPosterior(Elementwise):
    """exp(N(loc, scale^2)), started so that its mean exp(loc + scale^2 / 2) is the given value."""

    elementwise = True
    support = "positive"

    def __init__(self, value: Tensor, scale: float) -> None:
        raw = initial_raw(value, scale)
        half_variance = F.softplus(full_precision(raw.detach())).square() / 2
        super().__init__((value.log() - half_variance).to(value.dtype))
        self.raw_scale = raw

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        return F.softplus(full_precision(self.raw_scale))

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        mean = self.mean()
        self.raw_scale.fill_(SILENT)
        self.set_point_(mean)

    def transform(self, value: Tensor) -> Tensor:
        """See `Elementwise`."""
        return value.exp()

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return (full_precision(self.loc) + self.scale().square() / 2).exp()

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.loc.copy_(full_precision(value).log() - self.scale().square() / 2)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Posterior`."""
        scale, log = self.scale(), value.log()
        z = (log - full_precision(self.loc)) / scale
        return -0.5 * z.square() - log - scale.log() - 0.5 * math.log(2 * math.pi)


class HalfCauchyPosterior(Elementwise):
    """The absolute value of a Cauchy(0, exp(loc)); its "mean" is the median exp(loc)."""

    elementwise = True
    support = "positive"
    heavy_tailed = True
    draw_noise = staticmethod(noise.cauchy)

    def __init__(self, value: Tensor, scale: float) -> None:
        super().__init__(value.log())

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        return full_precision(self.loc).exp()

    def location(self) -> Tensor:
        """See `Elementwise`."""
        return torch.zeros_like(self.scale())

    def transform(self, value: Tensor) -> Tensor:
        """See `Elementwise`."""
        # One draw in ten million is 0, of which a prior of logarithms says that it is infinitely far.
        return value.abs().clamp_min(torch.finfo(value.dtype).tiny)

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self.scale()

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        super().set_point_(full_precision(value).log())

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Posterior`."""
        scale = self.scale()
        return math.log(2 / math.pi) - scale.log() - torch.log1p((value / scale).square())


@register_kl(CauchyPosterior, Cauchy)
def _cauchy(q: CauchyPosterior, p: Cauchy) -> Tensor:
    """log(((g1 + g2)^2 + (x1 - x2)^2) / (4 g1 g2)) (Chyzak and Nielsen 2019)."""
    scale, loc = q.scale(), full_precision(q.loc)
    distance = (scale + p.scale).square() + (loc - p.loc).square()
    return (distance.log() - (4 * p.scale * scale).log()).sum()


@register_kl(HalfCauchyPosterior, HalfCauchy)
def _half_cauchy(q: HalfCauchyPosterior, p: HalfCauchy) -> Tensor:
    """As between the two Cauchys at 0, by symmetry."""
    scale = q.scale()
    return (2 * (scale + p.scale).log() - (4 * p.scale * scale).log()).sum()


@register_kl(LogNormalPosterior, LogNormal)
def _log_normal(q: LogNormalPosterior, p: LogNormal) -> Tensor:
    """As between the two normals, which the logarithm maps them to."""
    scale, loc = q.scale(), full_precision(q.loc)
    squares = (scale.square() + (loc - p.loc).square()) / (2 * p.scale**2)
    return (squares - 0.5 - scale.log() + math.log(p.scale)).sum()


@register_kl(LogNormalPosterior, NormalPrior)
def _log_normal_normal(q: LogNormalPosterior, p: NormalPrior) -> Tensor:
    """-H(q) - E log p with E x = exp(loc + s^2/2), E x^2 = exp(2 loc + 2 s^2)."""
    scale, loc = q.scale(), full_precision(q.loc)
    first, second = (loc + scale.square() / 2).exp(), (2 * loc + 2 * scale.square()).exp()
    entropy = loc + 0.5 + 0.5 * math.log(2 * math.pi) + scale.log()
    squared_distance = second - 2 * p.mean * first + p.mean**2
    cross = squared_distance / (2 * p.std**2) + math.log(p.std) + 0.5 * math.log(2 * math.pi)
    return (cross - entropy).sum()
