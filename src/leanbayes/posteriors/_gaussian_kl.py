"""KL divergences of Gaussian posteriors from each prior, in closed form where one exists."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leanbayes._kl import MONTE_CARLO_DRAWS, monte_carlo_kl, register_kl
from leanbayes.noise import full_precision
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors.variational_dropout import VariationalDropoutPosterior
from leanbayes.priors import ARD, LogUniform, NormalPrior, StudentT

# Constants of Molchanov et al. (2017), eq. 14.
_K1, _K2, _K3 = 0.63576, 1.87320, 1.48695
# Below these degrees of freedom Student's t is the log-uniform prior, but for a constant, to float precision.
_TINY_DF = 1e-6


@register_kl(GaussianPosterior, NormalPrior)
def _normal(q: GaussianPosterior, p: NormalPrior) -> Tensor:
    std = q.std()
    mean = full_precision(q.loc)
    squares = (std.square() + (mean - p.mean).square()) / (2 * p.std**2)
    return (squares - 0.5 - std.log() + math.log(p.std)).sum()


@register_kl(GaussianPosterior, ARD)
def _ard(q: GaussianPosterior, p: ARD) -> Tensor:
    """0.5 * log(1 + 1 / alpha) per weight."""
    return _over_weights(q, lambda log_alpha: 0.5 * torch.nn.functional.softplus(-log_alpha))


@register_kl(GaussianPosterior, LogUniform)
def _log_uniform(q: GaussianPosterior, p: LogUniform) -> Tensor:
    return _over_weights(q, log_uniform_kl_exact if p.exact else log_uniform_kl)


@register_kl(GaussianPosterior, StudentT)
def _student(q: GaussianPosterior, p: StudentT) -> Tensor:
    if p.df > _TINY_DF:
        return monte_carlo_kl(q, p, MONTE_CARLO_DRAWS)
    constant = p.limit() * q.shape.numel() if p.constant else 0.0
    return _over_weights(q, log_uniform_kl) + constant


def _over_weights(q: GaussianPosterior, divergence) -> Tensor:
    if isinstance(q, VariationalDropoutPosterior):
        # A shared alpha counts once per weight that it serves.
        shared = q.shared_log_alpha()
        return divergence(shared).sum() * (q.shape.numel() / shared.numel())
    return divergence(q.log_alpha()).sum()


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL(N(m, alpha m^2) || log-uniform) less its limit at infinite alpha, as approximated by Molchanov et al. (2017).

    ``k1 - k1 * sigmoid(k2 + k3 * log_alpha) + 0.5 * log(1 + 1 / alpha)``
    """
    return _K1 * torch.sigmoid(-_K2 - _K3 * log_alpha) + 0.5 * torch.nn.functional.softplus(-log_alpha)


def log_uniform_kl_exact(log_alpha: Tensor) -> Tensor:
    """KL(N(m, alpha m^2) || log-uniform) less its limit at infinite alpha, to float precision.

    With x = 1 / (2 alpha) and J ~ Poisson(x) it is ``0.5 * (E digamma(J + 1/2) - digamma(1/2))``, since the square of
    a normal variable with mean is a Poisson mixture of chi-squares.
    """
    return _ExactLogUniform.apply(log_alpha)


class _ExactLogUniform(torch.autograd.Function):
    """Series for x <= 40, asymptotic expansion above; the derivative in x is ``0.5 * E 1 / (J + 1/2)``."""

    @staticmethod
    def forward(ctx, log_alpha: Tensor) -> Tensor:
        x = 0.5 * torch.exp(-log_alpha.double())
        value, slope = _series(x.clamp_max(_SERIES_LIMIT))
        far_value, far_slope = _asymptotic(x.clamp_min(_SERIES_LIMIT))
        near = x <= _SERIES_LIMIT
        value, slope = torch.where(near, value, far_value), torch.where(near, slope, far_slope)
        ctx.save_for_backward(-x * slope)
        return value.to(log_alpha.dtype)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return (grads[0] * slope).to(grads[0].dtype)


_SERIES_LIMIT = 40.0
_SERIES_TERMS = 140
_EULER_GAMMA = 0.5772156649015329


def _series(x: Tensor) -> tuple[Tensor, Tensor]:
    weight = torch.exp(-x)  # Poisson probability of J = 0
    value, slope, step = torch.zeros_like(x), weight / 0.5, 0.0
    for j in range(1, _SERIES_TERMS):
        weight = weight * (x / j)
        step += 1 / (j - 0.5)  # digamma(j + 1/2) - digamma(1/2)
        value = value + weight * step
        slope = slope + weight / (j + 0.5)
    return 0.5 * value, 0.5 * slope


def _asymptotic(x: Tensor) -> tuple[Tensor, Tensor]:
    # E log|z + e| = log z - sum_k (2k-1)!! / (2k z^2k) for z^2 = 2x, and digamma(1/2) = -gamma - 2 log 2.
    square = 2 * x
    value, slope, product = 0.5 * torch.log(2 * square) + 0.5 * _EULER_GAMMA, 0.5 / x, 1.0
    for k in range(1, 7):
        product *= 2 * k - 1
        value = value - product / (2 * k) * square**-k
        slope = slope + product * square ** (-k - 1)
    return value, slope
