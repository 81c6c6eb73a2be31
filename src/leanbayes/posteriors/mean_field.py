"""Gaussian mean-field: a mean and a standard deviation per weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._checks import check_choice, check_positive
from leanbayes._registry import register_posterior
from leanbayes.groups import ComponentGroup
from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.kernels.gaussian_kl import free_kl
from leanbayes.kernels.weight_sample import free_draws, free_draws_measured, free_fit
from leanbayes.noise import full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior, initial_raw
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors._joined import known_in_pass, once_in_pass
from leanbayes.posteriors._method import Method, check_prior
from leanbayes.priors import Normal, Prior

# What a softplus or an exponential maps to 0, in half precision too.
SILENT = -1e4
# Elements from which on standard deviations are computed once in a pass, and not joined with others for the divergence.
_SHARED_FROM = 1 << 15


class MeanFieldPosterior(GaussianPosterior):
    """N(loc, std^2) with a free standard deviation per element, std = softplus(raw_std).

    Args:
        value: The mean.
        init_std: Initial standard deviation.
        narrow: See `GaussianPosterior`.
    """

    elementwise = True

    def __init__(self, value: Tensor, init_std: float, narrow: bool = False) -> None:
        super().__init__(value)
        self.raw_std = initial_raw(self.loc, init_std)
        self.narrow = narrow

    def scale(self) -> Tensor:
        """See `Elementwise`; computed once for the moments or draws and the divergence where it is worth it."""
        if self.known is not None:
            if "scale" not in self.known:
                self.known["scale"] = _scale(self.raw_std)
            return self.known["scale"]
        if self.raw_std.numel() < _SHARED_FROM:
            return F.softplus(full_precision(self.raw_std))
        return once_in_pass("scale", self.raw_std, _scale)

    @classmethod
    def measured_alone(cls, parts: list[Any]) -> list[Any]:
        """See `Posterior`: with the standard deviations that this pass has computed already."""
        known = known_in_pass("scale")
        return [part for part in parts if id(part.raw_std) in known] if known else []

    def fits_kernels(self) -> bool:
        """See `GaussianPosterior`; a subclass may compute something else."""
        return type(self) is MeanFieldPosterior and free_fit(self.loc, self.raw_std)

    def fused_draws(self, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
        """See `GaussianPosterior`."""
        return free_draws(self.loc, self.raw_std, keys, with_loc=with_loc, dtype=dtype)

    def fused_kl(self, centre: Tensor | float, std: float) -> Tensor:
        """See `GaussianPosterior`."""
        return free_kl(self.loc, self.raw_std, centre, std)

    def fused_draws_measured(
        self, keys: Tensor, with_loc: bool, dtype: torch.dtype, centre: Tensor | float, std: float
    ) -> tuple[Tensor, Tensor]:
        """See `GaussianPosterior`."""
        return free_draws_measured(self.loc, self.raw_std, keys, centre, std, with_loc=with_loc, dtype=dtype)

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        self.raw_std.fill_(SILENT)


def _scale(raw: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not reverse_mode_alone():
        return F.softplus(full_precision(raw))
    return _Softplus.apply(full_precision(raw))  # pyright: ignore[reportReturnType]


class _Softplus(torch.autograd.Function):
    """``log(1 + exp(x))``, whose input is no saved tensor of autograd.

    Those are gone after one backward pass, and draws and divergence, which share the result, may be differentiated one
    after the other.
    """

    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        """See the class."""
        ctx.raw, ctx.version = raw, raw._version
        return F.softplus(raw)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A gradient that can be differentiated again."""
        if ctx.raw._version != ctx.version:
            raise RuntimeError(
                "standard deviations were changed in place between the forward and the backward pass; run the backward "
                "pass before the optimiser's step"
            )
        if torch.is_grad_enabled():
            return grad * torch.sigmoid(ctx.raw)
        return torch.ops.aten.softplus_backward(grad, ctx.raw, 1, 20)


@register_posterior("MeanField")
@dataclass(frozen=True)
class MeanField(Method):
    """Gaussian mean-field: w ~ N(loc, std^2), independent elements; doubles the parameters.

    With ``prior=LogUniform()`` it is the "additive" parameterisation of Variance Networks.

    Args:
        prior: Prior of each weight.
        estimator: "auto", "local" (local reparameterisation), "flipout", "weight", or your own.
        init_std: Initial standard deviation.
        bias: "point" leaves biases as they are, "same" gives them the same treatment.
    """

    prior: Prior = field(default_factory=lambda: Normal(0.0, 0.3))
    estimator: str = "auto"
    init_std: float = 0.01
    bias: str = "point"

    offers: ClassVar[frozenset[str]] = MeanFieldPosterior.offers

    def __post_init__(self) -> None:
        check_prior(self, self.prior)
        self._check_estimator(self.estimator)
        check_positive(self, init_std=self.init_std)
        check_choice(self, ("point", "same"), bias=self.bias)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        return MeanFieldPosterior(value, self.init_std, narrow=op is not None and not op.index_input)

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """See `Method`."""
        return MeanFieldPosterior(value, self.init_std) if self.bias == "same" else None

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)
