"""Variational dropout: Gaussian noise proportional to the weight, with a shared rate alpha."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leanbayes._checks import check_choice, check_number
from leanbayes._registry import register_posterior
from leanbayes.groups import ComponentGroup
from leanbayes.noise import full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors._method import Method, check_prior
from leanbayes.priors import LogUniform, Prior

# Above, the published code clips too: the noise would leave the range of half precision. Below, the standard deviation
# is under float32's resolution of the mean.
_LOG_ALPHA_RANGE = (-40.0, 20.0)
# A weight of exactly 0 would be a point, infinitely far from any proper prior. Counted as this large it is far below
# what float32 adds to any other weight, and its divergence and gradients are finite.
_LEAST_SIZE = 1e-15


class VariationalDropoutPosterior(GaussianPosterior):
    """N(loc, alpha loc^2) with one alpha per layer, output neuron or weight.

    Args:
        value: The mean.
        share: "layer", "neuron" or "weight".
        init_log_alpha: Initial log alpha.
        op: The layer's op, which says where the output neurons are.
    """

    def __init__(self, value: Tensor, share: str, init_log_alpha: float, op: LinearOp | None = None) -> None:
        super().__init__(value)
        self.share = share
        self.op = op
        neurons = self.shape[0] if op is None else op.features(self.shape, op.out_axis)
        shapes = {"layer": (), "neuron": (neurons,), "weight": self.shape}
        like = self.loc.detach()
        self.raw_log_alpha = nn.Parameter(
            torch.full(shapes[share], float(init_log_alpha), dtype=like.dtype, device=like.device)
        )

    def shared_log_alpha(self) -> Tensor:
        """Log alpha as it is shared: a scalar, ``[out]``, or one per weight."""
        return full_precision(self.raw_log_alpha).clamp(*_LOG_ALPHA_RANGE)

    def log_alpha(self) -> Tensor:
        """Log alpha of each weight, broadcastable to its shape."""
        shared = self.shared_log_alpha()
        if self.share != "neuron":
            return shared
        if self.op is None:
            return shared.view(-1, *(1,) * (self.loc.dim() - 1))
        return self.op.outer(self.shape, None, shared.unsqueeze(0)).squeeze(0)

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        return (0.5 * self.log_alpha()).exp() * full_precision(self.loc).abs().clamp_min(_LEAST_SIZE)

    @torch.no_grad()
    def entries(self, index: Tensor) -> Posterior:
        """See `Posterior`."""
        # The entries of a neuron are no longer equally many, so each gets the rate that it shared.
        shared = self.share == "layer"
        kept = VariationalDropoutPosterior(self.loc.flatten()[index], "layer" if shared else "weight", 0.0)
        rates = self.log_alpha()
        kept.raw_log_alpha.copy_(rates if shared else rates.expand(self.shape).flatten()[index])
        return kept

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`; the least alpha that there is."""
        self.raw_log_alpha.fill_(_LOG_ALPHA_RANGE[0])


@register_posterior("VariationalDropout")
@dataclass(frozen=True)
class VariationalDropout(Method):
    """Variational dropout (Variance Networks, eq. 14): w ~ N(loc, alpha loc^2).

    Trained long enough, some layers' alpha goes to infinity: they become variance layers.

    Args:
        share: One alpha per "layer", output "neuron" or "weight".
        prior: `LogUniform()`, `StudentT(1e-16)` or `ARD()`; other priors of a Gaussian work too.
        estimator: "auto", "local" (local reparameterisation, as in the paper), "flipout", "weight", or your own.
        init_log_alpha: Initial log alpha.
    """

    share: str = "layer"
    prior: Prior = field(default_factory=LogUniform)
    estimator: str = "auto"
    init_log_alpha: float = -5.0

    offers: ClassVar[frozenset[str]] = VariationalDropoutPosterior.offers

    def __post_init__(self) -> None:
        check_choice(self, ("layer", "neuron", "weight"), share=self.share)
        check_prior(self, self.prior)
        self._check_estimator(self.estimator)
        check_number(self, *_LOG_ALPHA_RANGE, init_log_alpha=self.init_log_alpha)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        return VariationalDropoutPosterior(value, self.share, self.init_log_alpha, op)

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)
