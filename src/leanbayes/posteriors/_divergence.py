"""KL divergences by registered pairs of posterior and prior, and the terms of a model's total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._sampling import current_frame, current_sampling
from leanbayes.noise import exact_products
from leanbayes.posteriors._base import Posterior
from leanbayes.priors._base import Prior

Mixture = Literal["mean", "sum", "joint"]
KLFunction = Callable[[Any, Any], Tensor]

_NEITHER = (None, None)
_PAIRS: dict[tuple[type, type], KLFunction] = {}
# Draws of one Monte Carlo term; the estimate is unbiased for any number.
MONTE_CARLO_DRAWS = 8


class JointTerm(NamedTuple):
    """What one distribution adds to the divergence of a mixture over all layers jointly.

    Attributes:
        group: Whose index the mixture has.
        log_q: Log densities ``[K, K]`` of a draw from component k (first axis) under component j.
        log_p: Log densities ``[K]`` of these draws under the prior, and what the prior leaves out.
    """

    group: nn.Module
    log_q: Tensor
    log_p: Tensor


class Divergence(NamedTuple):
    """What one distribution adds to a model's total, before it is computed: several of one kind are computed as one.

    Attributes:
        posterior: The posterior.
        prior: The bound prior.
        constant: Overrides `StudentT.constant`.
        share: Factor of the divergence.
        stacked_axes: Axes of its parameters in front of those of the tensor, None for the posterior's own.
    """

    posterior: Posterior
    prior: Prior | None
    constant: bool | None = None
    share: float = 1.0
    stacked_axes: int | None = None

    def value(self) -> Tensor:
        """The term; as it was computed with a draw, where it was."""
        frame = current_frame()
        known = None if frame is None else frame.divergences
        prior, divergence = _NEITHER if known is None else known.get(id(self.posterior), _NEITHER)
        if divergence is None or prior is not self.prior:
            divergence = kl_divergence(self.posterior, self.prior, constant=self.constant)
        return divergence if self.share == 1 else divergence * self.share

    def join_key(self) -> tuple[Any, ...] | None:
        """What terms have in common that can be computed as one; None where it is computed alone.

        It stays the same for as long as a model consists of the same modules and none of them moves.
        """
        kind = self.posterior.join_key()
        # A prior of tensors belongs to one weight.
        if kind is None or self.prior is None or isinstance(self.prior, nn.Module):
            return None
        closed_form = find_kl(type(self.posterior), type(self.prior)) is not None
        return (*kind, self.prior, self.constant, self.share) if closed_form else None


def register_kl(q: type, p: type) -> Callable[[KLFunction], KLFunction]:
    """Register the divergence of a posterior class from a prior class; the most specific pair wins.

    The function takes the posterior and the bound prior and returns a scalar, summed over all elements.
    """

    def add(function: KLFunction) -> KLFunction:
        if (q, p) in _PAIRS:
            raise ValueError(f"the KL divergence of {q.__name__} from {p.__name__} is already registered")
        _PAIRS[q, p] = function
        return function

    return add


def find_kl(q: type, p: type) -> KLFunction | None:
    """The registered function of the most specific pair, None where there is none."""
    for posterior in q.__mro__:
        for prior in p.__mro__:
            if (posterior, prior) in _PAIRS:
                return _PAIRS[posterior, prior]
    return None


def why_infinite(q: Posterior, p: Prior | None) -> str | None:
    """Why the divergence is infinite or undefined, None where it is fine."""
    if p is None or find_kl(type(q), type(p)) is not None:
        return None
    name, prior = type(q).__name__.removesuffix("Posterior"), type(p).__name__
    if not p.proper or not q.has_density:
        return f"no KL divergence of a {name} posterior from the prior {prior} is known; choose another prior"
    if q.heavy_tailed and not p.heavy_tailed:
        return f"a {name} posterior under a {prior} prior has an infinite KL divergence; choose a heavy-tailed prior"
    if q.support == "real" and p.support == "positive":
        return (
            f"a {name} posterior under the positive {prior} prior has an infinite KL divergence; choose another prior"
        )
    return None


def kl_divergence(q: Posterior, p: Prior | None, *, constant: bool | None = None) -> Tensor:
    """KL(q || p) in nats, summed over the elements: closed form where registered, Monte Carlo otherwise.

    Args:
        q: The posterior.
        p: The bound prior; None counts 0.
        constant: Overrides `StudentT.constant`.
    """
    if p is None:
        return torch.zeros((), device=next(q.parameters()).device)
    if constant is not None:
        p = p.with_constant(constant)
    function = find_kl(type(q), type(p))
    if function is not None:
        return function(q, p)
    problem = why_infinite(q, p)
    if problem is not None:
        raise ValueError(problem)
    return monte_carlo_kl(q, p, MONTE_CARLO_DRAWS)


def monte_carlo_kl(q: Posterior, p: Prior, draws: int) -> Tensor:
    """E_q[log q - log p] by `draws` reparameterised draws of the whole tensor, less what the prior leaves out."""
    with exact_products(next(q.parameters()).device):
        w = q.rsample(draws, current_sampling().source(draws))
    proper = (q.joint_log_prob(w) - p.log_prob(w).flatten(1).sum(1)).mean()
    return proper - p.left_out() * q.shape.numel()
