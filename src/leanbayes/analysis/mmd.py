"""How far a layer's posterior is from its zero-mean approximation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import nn

from leanbayes.analysis._layers import noisy_layers
from leanbayes.analysis.alpha import weight_log_alpha
from leanbayes.posteriors._base import Posterior
from leanbayes.posteriors.sparse import SparsePosterior

# No two distributions are farther apart than this.
_FARTHEST = 2.0


@dataclass(frozen=True)
class MMDBound:
    """The distance of N(mu, alpha mu^2) from N(0, alpha mu^2) over the D weights of a layer; `print` shows it.

    It is the maximum mean discrepancy over functions bounded by 1, twice the total variation distance: at most 2, and
    no class probability of an averaged prediction changes by more than this if the means are dropped.

    Attributes:
        alpha: Variance over squared mean; the harmonic mean if weights differ.
        weights: The number D.
    """

    alpha: float
    weights: int

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ValueError(f"alpha is a number from 0, not {self.alpha!r}")
        if self.weights < 1:
            raise ValueError(f"a layer has at least one weight, not {self.weights!r}")

    @property
    def bound(self) -> float:
        """The bound of Variance Networks, theorem 1: ``sqrt(2 D / (pi alpha))``."""
        return math.sqrt(2 / math.pi * self._inverse)

    @property
    def exact(self) -> float:
        """The distance itself: ``2 erf(sqrt(D / (8 alpha)))``."""
        return 2 * math.erf(math.sqrt(self._inverse / 8))

    @property
    def _inverse(self) -> float:
        return self.weights / self.alpha if self.alpha else math.inf

    @property
    def vacuous(self) -> bool:
        """Whether the bound says nothing, being 2 or more."""
        return self.bound >= _FARTHEST

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for an infinite alpha (a variance layer) or an infinite bound (points)."""
        alpha, bound = (value if math.isfinite(value) else None for value in (self.alpha, self.bound))
        return {"alpha": alpha, "weights": self.weights, "bound": bound, "exact": self.exact, "vacuous": self.vacuous}

    def __str__(self) -> str:
        verdict = "vacuous: no distance exceeds 2" if self.vacuous else "the means can be dropped to within the bound"
        log_alpha = math.log(self.alpha) if self.alpha else -math.inf
        size = f"{self.weights:,} weights, log alpha {log_alpha:.2f}"
        return f"{size}: distance {self.exact:.4g}, bound {self.bound:.4g} ({verdict})"


@overload
def mmd_bound(model_or_alpha: nn.Module) -> dict[str, MMDBound]: ...
@overload
def mmd_bound(model_or_alpha: float, weights: int) -> MMDBound: ...
def mmd_bound(model_or_alpha: nn.Module | float, weights: int | None = None) -> MMDBound | dict[str, MMDBound]:
    """Bound the distance of a posterior from its zero-mean approximation (Variance Networks, theorem 1).

    The bound is for a layer as a whole, so its alpha has to outgrow the number of weights: with 400,000 weights, a log
    alpha of 6.9 says nothing yet.

    Args:
        model_or_alpha: A converted model, or the alpha of one layer.
        weights: Number of the layer's weights, if alpha is given.

    Returns:
        One `MMDBound`, or one for each layer of the model by name.

    Example:
        >>> import leanbayes as lb
        >>> print(lb.analysis.mmd_bound(1e6, 400))
        400 weights, log alpha 13.82: distance 0.01596, bound 0.01596 (the means can be dropped to within the bound)
    """
    if isinstance(model_or_alpha, nn.Module):
        layers = noisy_layers(model_or_alpha)
        return {name: _of_posterior(weight.posterior) for layer in layers for name, weight in layer.weights.items()}
    if weights is None:
        raise TypeError("mmd_bound takes a model, or alpha and the number of weights")
    return MMDBound(float(model_or_alpha), weights)


@torch.no_grad()
def _of_posterior(posterior: Posterior) -> MMDBound:
    if isinstance(posterior, SparsePosterior):
        if posterior.points is not None and bool(posterior.points.any()):
            return MMDBound(0.0, posterior.shape.numel())  # points at their means and points at zero share nothing
        if len(posterior.index) == 0:
            return MMDBound(math.inf, posterior.shape.numel())  # zeros in either case
        return _of_posterior(posterior.kept)
    # Where weights differ in alpha, D / alpha is the sum of 1 / alpha: the squared distance of the means in units of
    # the standard deviation. Weights that share an alpha are equally many, so a mean over alphas is one over weights.
    inverse = float((-weight_log_alpha(posterior).double()).exp().mean())
    return MMDBound(math.inf if inverse == 0 else 1 / inverse, posterior.shape.numel())
