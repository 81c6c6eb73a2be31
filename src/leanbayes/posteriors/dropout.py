"""Dropout as a posterior: MC dropout masks input features, DropConnect masks weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._checks import is_number
from leanbayes._registry import register_posterior
from leanbayes._sampling import Sampling
from leanbayes.groups import ComponentGroup
from leanbayes.noise import full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Factors, Posterior
from leanbayes.posteriors._divergence import register_kl
from leanbayes.posteriors._method import Method, check_prior
from leanbayes.posteriors._squares import sum_of_squares
from leanbayes.priors import HeNormal, Normal, NormalPrior, Pretrained, Prior


class DropConnectPosterior(Posterior):
    """Each weight is 0 with probability p, else w / (1 - p).

    Args:
        value: The weight w.
        p: The drop probability.
    """

    original = ("weight",)

    def __init__(self, value: Tensor, p: float) -> None:
        super().__init__()
        self.weight = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())
        self.p = p

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.weight.shape

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return full_precision(self.weight) * noise.keep_mask((n, *self.shape), self.p, self.weight, spec)

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self.weight

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.weight.copy_(value)

    def silence_(self) -> None:
        """See `Posterior`."""
        self.p = 0.0

    def deterministic(self) -> bool:
        """See `Posterior`."""
        return self.p == 0


class DropoutPosterior(DropConnectPosterior):
    """All weights of an input feature are 0 with probability p, else w / (1 - p).

    Args:
        value: The weight w.
        p: The drop probability.
        op: The layer's op.
    """

    offers = frozenset({"draws", "factors"})

    def __init__(self, value: Tensor, p: float, op: LinearOp) -> None:
        super().__init__(value, p)
        self.op = op

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return full_precision(self.weight) * self.op.outer(self.shape, self._mask(n, spec), None)

    def factors(self, rows: int, spec: Sampling) -> Factors:
        """See `Posterior`; one mask per row, the same at all its positions."""
        return Factors(self.weight, in_scale=self._mask(rows, spec), out_scale=None)

    def _mask(self, rows: int, spec: Sampling) -> Tensor:
        size = self.op.features(self.shape, self.op.in_axis)
        return noise.keep_mask((rows, size), self.p, self.weight, spec)


@register_kl(DropConnectPosterior, NormalPrior)
def _dropout(q: DropConnectPosterior, p: NormalPrior) -> Tensor:
    """E |w_drawn - mean|^2 / (2 s^2); for a zero-mean prior |w|^2 / (2 s^2 (1 - p))."""
    weight = full_precision(q.weight)
    squares = sum_of_squares(weight)
    if not isinstance(p.mean, Tensor) and p.mean == 0:
        return squares / ((1 - q.p) * 2 * p.std**2)
    # The mean of a drawn weight is w, its variance w^2 p / (1 - p).
    return (sum_of_squares(weight - p.mean) + squares * (q.p / (1 - q.p))) / (2 * p.std**2)


@dataclass(frozen=True)
class _Dropout(Method):
    p: float | None = 0.1
    prior: Prior = field(default_factory=lambda: Normal(0.0, 1.0))
    estimator: str = "auto"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.p is not None and not (is_number(self.p) and 0 <= self.p < 1):
            raise ValueError(f"{name}(p=...) is the drop probability, from 0 to below 1, not {self.p!r}")
        check_prior(self, self.prior)
        if not isinstance(self.prior, (Normal, HeNormal, Pretrained)):
            raise TypeError(f"{name}(prior=...) takes Normal, HeNormal or Pretrained, not {self.prior!r}")
        self._check_estimator(self.estimator)

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)


@register_posterior("MCDropout")
@dataclass(frozen=True)
class MCDropout(_Dropout):
    """Monte Carlo dropout (Gal and Ghahramani 2016): input features of a layer are dropped, in eval mode too.

    One mask per example, the same at all its positions and steps; kept features are divided by 1 - p.

    Args:
        p: The drop probability; None keeps the model's own Dropout layers on instead.
        prior: Normal prior; the KL is |w|^2 / (2 s^2 (1 - p)).
        estimator: "auto", "rank1" (one mask per example), "weight" (one mask for all rows, which lets recurrent layers
            run on torch's fused kernels), or your own.
    """

    offers: ClassVar[frozenset[str]] = DropoutPosterior.offers
    per_example: ClassVar[bool] = True

    @property
    def kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return frozenset({"dropout"}) if self.p is None else Method.kinds

    @property
    def default_kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return frozenset({"dropout"}) if self.p is None else Method.default_kinds

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        assert op is not None and self.p is not None
        return DropoutPosterior(value, self.p, op)


@register_posterior("DropConnect")
@dataclass(frozen=True)
class DropConnect(_Dropout):
    """DropConnect (Wan et al. 2013): single weights are dropped, in eval mode too; kept ones are divided by 1 - p.

    Args:
        p: The drop probability.
        prior: Normal prior; the KL is |w|^2 / (2 s^2 (1 - p)).
        estimator: "auto", "weight", or your own.
    """

    offers: ClassVar[frozenset[str]] = DropConnectPosterior.offers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p is None:
            raise ValueError("DropConnect(p=...) is the drop probability, from 0 to below 1, not None")

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        assert self.p is not None
        return DropConnectPosterior(value, self.p)
