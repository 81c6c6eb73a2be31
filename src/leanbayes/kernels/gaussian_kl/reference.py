"""The definition in plain torch: the divergence of independent Gaussians from one Gaussian prior."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from leanbayes.noise import full_precision


def gaussian_kl_reference(loc: Tensor, std: Tensor, centre: Tensor | float, prior_std: float) -> Tensor:
    """Sum of ``(std^2 + (loc - centre)^2) / (2 prior_std^2) - 1/2 - log(std / prior_std)`` over all elements."""
    squares = (std.square() + (loc - centre).square()) / (2 * prior_std**2)
    return (squares - 0.5 - std.log() + math.log(prior_std)).sum()


def tied_std(log_u: Tensor, log_v: Tensor, like: Tensor, out_axis: int) -> Tensor:
    """``exp(log_u) @ exp(log_v).T`` in the shape of the weight."""
    shape = list(like.shape)
    out = shape.pop(out_axis)
    matrix = full_precision(log_u).exp() @ full_precision(log_v).exp().mT
    return matrix.view(out, *shape).movedim(0, out_axis)


def tied_kl_reference(
    loc: Tensor, log_u: Tensor, log_v: Tensor, centre: Tensor | float, prior_std: float, out_axis: int = 0
) -> Tensor:
    """See `leanbayes.kernels.gaussian_kl.tied_kl`."""
    return gaussian_kl_reference(full_precision(loc), tied_std(log_u, log_v, loc, out_axis), centre, prior_std)


def free_kl_reference(loc: Tensor, raw_std: Tensor, centre: Tensor | float, prior_std: float) -> Tensor:
    """See `leanbayes.kernels.gaussian_kl.free_kl`."""
    return gaussian_kl_reference(full_precision(loc), F.softplus(full_precision(raw_std)), centre, prior_std)
