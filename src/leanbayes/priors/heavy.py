"""Heavy-tailed and positive priors."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leanbayes._checks import check_number, check_positive
from leanbayes._registry import register_prior
from leanbayes.priors._base import Prior


@register_prior("Cauchy")
@dataclass(frozen=True)
class Cauchy(Prior):
    """Cauchy(loc, scale) on every element."""

    loc: float = 0.0
    scale: float = 1.0

    heavy_tailed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, loc=self.loc)
        check_positive(self, scale=self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`."""
        return -math.log(math.pi * self.scale) - torch.log1p(((value - self.loc) / self.scale).square())


@register_prior("HalfCauchy")
@dataclass(frozen=True)
class HalfCauchy(Prior):
    """The absolute value of a Cauchy(0, scale)."""

    scale: float = 1.0

    support: ClassVar[str] = "positive"
    heavy_tailed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, scale=self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`."""
        return math.log(2 / (math.pi * self.scale)) - torch.log1p((value / self.scale).square())


@register_prior("LogNormal")
@dataclass(frozen=True)
class LogNormal(Prior):
    """exp(N(loc, scale^2)) on every element."""

    loc: float = 0.0
    scale: float = 1.0

    support: ClassVar[str] = "positive"
    # E (log x)^2 is finite under every posterior here, so that the KL divergence is.
    heavy_tailed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, loc=self.loc)
        check_positive(self, scale=self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`."""
        log = value.log()
        z = (log - self.loc) / self.scale
        return -0.5 * z.square() - log - math.log(self.scale) - 0.5 * math.log(2 * math.pi)


@register_prior("StudentT")
@dataclass(frozen=True)
class StudentT(Prior):
    """Student's t with `df` degrees of freedom and unit scale; df -> 0 is the log-uniform prior.

    For df up to 1e-12 the KL divergence of a Gaussian depends on alpha = var / mean^2 alone, up to a constant; for
    larger df it is estimated by Monte Carlo. From either, `limit` is subtracted: the value at infinite alpha as df goes
    to 0 (so that it is zero there, as with `LogUniform`). With `constant` the divergence is the proper one.
    """

    df: float = 1e-16
    constant: bool = False

    heavy_tailed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, df=self.df)

    def log_prob(self, value: Tensor) -> Tensor:
        """See `Prior`; (1 + df)/2 * log(1 + x^2/df) is taken apart, so that a tiny df does not overflow."""
        df = self.df
        normaliser = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        # At 0, the logarithm would have no gradient; one draw in ten million is 0.
        size = value.abs().clamp_min(torch.finfo(value.dtype).tiny)
        log_ratio = torch.logaddexp(torch.zeros_like(value), 2 * size.log() - math.log(df))
        return normaliser - 0.5 * (df + 1) * log_ratio

    def with_constant(self, constant: bool) -> Prior:
        """See `Prior`."""
        return dataclasses.replace(self, constant=constant)

    def left_out(self) -> float:
        """See `Prior`."""
        return 0.0 if self.constant else self.limit()

    def limit(self) -> float:
        """KL(N(0, s^2) || StudentT(df)) for df -> 0, the same for every s: the limit at infinite alpha.

        -log(s sqrt(2 pi e)) - E log p, where E log|s e| = log s - (Euler gamma + log 2) / 2 for standard normal e.
        """
        df = self.df
        normaliser = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        euler_gamma = 0.5772156649015329
        expected_log = -(euler_gamma + math.log(2)) / 2
        minus_log_p = -normaliser + 0.5 * (df + 1) * (2 * expected_log - math.log(df))
        return minus_log_p - 0.5 * math.log(2 * math.pi * math.e)


@register_prior("LogUniform")
@dataclass(frozen=True)
class LogUniform(Prior):
    """The improper prior p(w) ~ 1/|w|, under which the KL divergence of a Gaussian depends on alpha alone.

    Its limit at infinite alpha is subtracted, so that it is zero there. With `exact` the divergence is computed to
    float precision; otherwise by the approximation of Molchanov et al. (2017), which is off by at most 0.01 per weight.
    """

    exact: bool = False

    heavy_tailed: ClassVar[bool] = True
    proper: ClassVar[bool] = False


@register_prior("ARD")
@dataclass(frozen=True)
class ARD(Prior):
    """Automatic relevance determination: N(0, var + mean^2), the best zero-mean normal prior for each element."""

    proper: ClassVar[bool] = False
