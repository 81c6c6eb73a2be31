"""KL divergences of Gaussian posteriors from each prior, in closed form where one exists."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.noise import full_precision
from leanbayes.posteriors._blocks import sum_in_blocks
from leanbayes.posteriors._divergence import MONTE_CARLO_DRAWS, monte_carlo_kl, register_kl
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.priors import ARD, LogUniform, NormalPrior, StudentT

# Constants of Molchanov et al. (2017), eq. 14.
_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695
# Up to these degrees of freedom Student's t is the log-uniform prior but for a constant: a weight with standard
# deviation s is within sqrt(df) of 0, where the two differ, with a probability of sqrt(df) / s.
_TINY_DF = 1e-12


@register_kl(GaussianPosterior, NormalPrior)
def _normal(q: GaussianPosterior, p: NormalPrior) -> Tensor:
    if q.measured_by_kernel(p):
        return q.fused_kl(p.mean, p.std)
    std, mean = q.std(), full_precision(q.loc)
    distance = mean - p.mean if isinstance(p.mean, Tensor) or p.mean else mean
    # Compilers make one loop of the terms and one of their gradients by themselves.
    if torch.compiler.is_compiling() or not reverse_mode_alone():
        squares = (std.square() + distance.square()) / (2 * p.std**2)
        return (squares - 0.5 - std.log() + math.log(p.std)).sum()
    return _NormalDivergence.apply(distance, std, p.std)  # pyright: ignore[reportReturnType]


class _NormalDivergence(torch.autograd.Function):
    """``sum (std^2 + distance^2) / (2 prior_std^2) - 1/2 - log(std / prior_std)``.

    It takes fewer passes over memory, and fewer calls, than autograd takes for the expression.
    """

    @staticmethod
    def forward(ctx: Any, distance: Tensor, std: Tensor, prior_std: float) -> Tensor:
        """See the class."""
        ctx.save_for_backward(distance, std)
        ctx.precision = 1 / prior_std**2

        def negative(distance: Tensor, std: Tensor) -> Tensor:
            squares = std.square().addcmul_(distance, distance)
            # With the 1/2 in the logarithm, lest large sums cancel.
            return (std * (math.exp(0.5) / prior_std)).log_().sub_(squares, alpha=0.5 * ctx.precision)

        return sum_in_blocks(negative, distance, std).neg_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients that can be differentiated again."""
        distance, std = ctx.saved_tensors
        wants_distance, wants_std, _ = ctx.needs_input_grad
        by_distance = distance * (grad * ctx.precision) if wants_distance else None
        return by_distance, _by_std(std, grad, ctx.precision) if wants_std else None, None


def _by_std(std: Tensor, grad: Tensor, precision: float) -> Tensor:
    if torch.is_grad_enabled():
        return std * (grad * precision) - grad / std
    # The same in a single new tensor.
    return std.reciprocal().sub_(std, alpha=precision).mul_(-grad)


@register_kl(GaussianPosterior, ARD)
def _ard(q: GaussianPosterior, p: ARD) -> Tensor:
    """0.5 * log(1 + 1 / alpha) per weight."""
    return _over_weights(q, lambda log_alpha: 0.5 * F.softplus(-log_alpha))


@register_kl(GaussianPosterior, LogUniform)
def _log_uniform(q: GaussianPosterior, p: LogUniform) -> Tensor:
    return _over_weights(q, log_uniform_kl_exact if p.exact else log_uniform_kl)


@register_kl(GaussianPosterior, StudentT)
def _student(q: GaussianPosterior, p: StudentT) -> Tensor:
    if p.df > _TINY_DF:
        return monte_carlo_kl(q, p, MONTE_CARLO_DRAWS)
    return _over_weights(q, log_uniform_kl_exact) + (p.limit() - p.left_out()) * q.shape.numel()


def _over_weights(q: GaussianPosterior, divergence: Callable[[Tensor], Tensor]) -> Tensor:
    # A shared alpha counts once per weight that it serves.
    shared = q.shared_log_alpha()
    return divergence(shared).sum() * (q.shape.numel() / shared.numel())


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL(N(m, alpha m^2) || log-uniform) less its limit at infinite alpha, as approximated by Molchanov et al. (2017).

    ``k1 - k1 * sigmoid(k2 + k3 * log_alpha) + 0.5 * log(1 + 1 / alpha)``
    """
    return _K1 * torch.sigmoid(-_K2 - _K3 * log_alpha) + 0.5 * F.softplus(-log_alpha)


def log_uniform_kl_exact(log_alpha: Tensor) -> Tensor:
    """KL(N(m, alpha m^2) || log-uniform) less its limit at infinite alpha, to float precision.

    With x = 1 / (2 alpha) and J ~ Poisson(x) it is ``0.5 * (E digamma(J + 1/2) - digamma(1/2))``, since the square of
    a normal variable with mean is a Poisson mixture of chi-squares. The series is tabulated once; below the table an
    asymptotic expansion takes over, above it the first term of the series.
    """
    wide = log_alpha.double()
    x = 0.5 * torch.exp(-wide)
    value = torch.where(wide < _LOW, _asymptotic(x.clamp_min(0.5 * math.exp(-_LOW))), _interpolate(wide))
    return torch.where(wide > _HIGH, x, value).to(log_alpha.dtype)


_LOW, _HIGH, _STEP = -4.5, 25.0, 2.0**-6
_SERIES_TERMS = 160
_EULER_GAMMA = 0.5772156649015329


def _series(x: Tensor) -> tuple[Tensor, Tensor]:
    """The divergence and its derivative in x, ``0.5 * E 1 / (J + 1/2)``."""
    weight = torch.exp(-x)  # Poisson probability of J = 0
    value, slope, step = torch.zeros_like(x), weight / 0.5, 0.0
    for j in range(1, _SERIES_TERMS):
        weight = weight * (x / j)
        step += 1 / (j - 0.5)  # digamma(j + 1/2) - digamma(1/2)
        value = value + weight * step
        slope = slope + weight / (j + 0.5)
    return 0.5 * value, 0.5 * slope


def _table() -> Tensor:
    """Values and slopes (times the step) of the divergence at equidistant log alphas: ``[points, 2]``."""
    points = torch.arange(_LOW, _HIGH + 2 * _STEP, _STEP, dtype=torch.float64)
    x = 0.5 * torch.exp(-points)
    value, slope = _series(x)
    return torch.stack([value, -x * slope * _STEP], 1)


# By device: copying it there for every step would stop a GPU's queue, and cannot be recorded in a CUDA graph.
_TABLES = {torch.device("cpu"): _table()}


def _table_on(device: torch.device) -> Tensor:
    if device in _TABLES:
        return _TABLES[device]
    table = _TABLES[torch.device("cpu")].to(device)
    if not torch.compiler.is_compiling():
        _TABLES[device] = table
    return table


def _interpolate(log_alpha: Tensor) -> Tensor:
    """Cubic between the points of the table, with their values and slopes."""
    position = (log_alpha.clamp(_LOW, _HIGH) - _LOW) / _STEP
    index = position.detach().long()
    f = position - index
    table = _table_on(log_alpha.device)
    # A lookup, since indexing by a shared alpha's single index would leave a compiled graph.
    v, m = F.embedding(index, table).unbind(-1)
    w, n = F.embedding(index + 1, table).unbind(-1)
    return v + f * (m + f * (3 * (w - v) - 2 * m - n + f * (2 * (v - w) + m + n)))


def _asymptotic(x: Tensor) -> Tensor:
    # E log|z + e| = log z - sum_k (2k-1)!! / (2k z^2k) for z^2 = 2x, and digamma(1/2) = -gamma - 2 log 2.
    inverse = 0.5 / x
    total = torch.zeros_like(x)
    for k in range(8, 0, -1):
        total = inverse * (total + math.prod(range(1, 2 * k, 2)) / (2 * k))
    return 0.5 * torch.log(4 * x) + 0.5 * _EULER_GAMMA - total
