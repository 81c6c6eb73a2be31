"""Variance layers: weights with zero mean that store everything in their standard deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._checks import check_choice
from leanbayes._registry import register_posterior
from leanbayes._sampling import Sampling
from leanbayes.groups import ComponentGroup
from leanbayes.noise import full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Moments, Posterior
from leanbayes.posteriors._divergence import register_kl
from leanbayes.posteriors._method import Method
from leanbayes.priors import LogUniform, Prior


class VariancePosterior(Posterior):
    """``|scale| * e`` with e symmetric, of mean 0 and variance 1: normal, -1/+1, or uniform.

    Args:
        value: The plain weight; its absolute value is the initial standard deviation.
        kind: "gaussian", "bernoulli" or "uniform".
    """

    offers = frozenset({"draws", "symmetric", "moments"})

    def __init__(self, value: Tensor, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.gaussian = kind == "gaussian"
        self.signed_std = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.signed_std.shape

    def std(self) -> Tensor:
        """Standard deviation of each element."""
        return full_precision(self.signed_std).abs()

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        shape = (n, *self.shape)
        if self.kind == "gaussian":
            eps = noise.normal(shape, self.signed_std, spec)
        elif self.kind == "bernoulli":
            eps = noise.signs(shape, self.signed_std, spec)
        else:
            eps = (2 * noise.uniform(shape, self.signed_std, spec) - 1) * math.sqrt(3)
        return self.std() * eps

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self.rsample(n, spec)

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return torch.zeros_like(self.signed_std)

    def moments(self) -> Moments:
        """See `Posterior`."""
        return Moments(None, self.std().square())

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.signed_std.copy_(value)

    def entries(self, index: Tensor) -> Posterior:
        """See `Posterior`."""
        return VariancePosterior(self.signed_std.flatten()[index], self.kind)

    def shared_log_alpha(self) -> Tensor:
        """Infinite: there is no mean."""
        return torch.full((), math.inf, device=self.signed_std.device)

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        self.signed_std.zero_()


@register_kl(VariancePosterior, LogUniform)
def _zero(q: VariancePosterior, p: LogUniform) -> Tensor:
    """Zero: the limit at infinite alpha, which the log-uniform divergence is reported less of."""
    return torch.zeros((), device=q.signed_std.device)


@register_posterior("VarianceLayer")
@dataclass(frozen=True)
class VarianceLayer(Method):
    """A variance layer (Variance Networks, sec. 3): w = std * e, zero mean, std starting at abs(w).

    Its mean output is its bias. The KL divergence from the log-uniform prior is constant and counts as 0.

    Args:
        noise: The distribution of e: "gaussian", "bernoulli" (-1 or +1) or "uniform".
        estimator: "auto", "local" (moment matching where the noise is not Gaussian, which "auto" never takes),
            "flipout", "weight", or your own.
    """

    noise: str = "gaussian"
    estimator: str = "auto"

    offers: ClassVar[frozenset[str]] = VariancePosterior.offers

    def __post_init__(self) -> None:
        check_choice(self, ("gaussian", "bernoulli", "uniform"), noise=self.noise)
        self._check_estimator(self.estimator)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        return VariancePosterior(value, self.noise)

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return LogUniform()
