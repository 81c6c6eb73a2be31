"""Batch normalisation between two rank-1 layers, in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# In the place of a factor of exactly 0, which would leave no trace of what it has multiplied.
TINY = 1e-20


class Settings(NamedTuple):
    """What is fixed for one place in a network.

    Attributes:
        relu: Whether negative values become 0.
        eps: What is added to the variance.
        plain: Whether the output before the second scale is wanted, too.
    """

    relu: bool
    eps: float
    plain: bool


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass beside its inputs and outputs.

    Attributes:
        mean: Mean of each channel ``[C]``.
        var: Its variance over all positions ``[C]``.
        row_mean: Mean of each channel of each unscaled row ``[N, C]``.
        row_squares: Sum of squared distances from it ``[N, C]``.
    """

    mean: Tensor
    var: Tensor
    row_mean: Tensor
    row_squares: Tensor


class Gradients(NamedTuple):
    """Gradients of all inputs, None for those that are not there."""

    y: Tensor
    r: Tensor | None
    weight: Tensor
    bias: Tensor
    residual: Tensor | None
    s: Tensor | None


def nonzero(s: Tensor) -> Tensor:
    """Factors in float32, of which none is 0."""
    s = s.float()
    return torch.where(s == 0, TINY, s)


def forward_reference(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    settings: Settings,
) -> tuple[Tensor | None, Tensor | None, Saved]:
    """The output before and after the second scale (None where it is not wanted), and what backward needs."""
    precise = y.float()
    row_mean = precise.mean((2, 3))
    row_squares = (precise - row_mean[:, :, None, None]).square().sum((2, 3))
    scaled = precise if r is None else precise * r.float()[:, :, None, None]
    var, mean = torch.var_mean(scaled, (0, 2, 3), correction=0)
    plain, product = apply_reference(y, r, weight, bias, residual, s, mean, var, settings)
    return plain, product, Saved(mean, var, row_mean, row_squares)


def apply_reference(
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    s: Tensor | None,
    mean: Tensor,
    var: Tensor,
    settings: Settings,
) -> tuple[Tensor | None, Tensor | None]:
    """The output before and after the second scale, None where it is not wanted, for statistics that are known."""
    scaled = y.float() if r is None else y.float() * r.float()[:, :, None, None]
    z = (scaled - mean.float()[:, None, None]) * torch.rsqrt(var.float() + settings.eps)[:, None, None]
    z = z * weight.float()[:, None, None] + bias.float()[:, None, None]
    if residual is not None:
        z = z + residual.float()
    if settings.relu:
        z = z.relu()
    plain = z.to(y.dtype) if settings.plain or s is None else None
    return plain, None if s is None else (z * nonzero(s)[:, :, None, None]).to(y.dtype)


def backward_reference(
    grad_plain: Tensor | None,
    grad_scaled: Tensor | None,
    y: Tensor,
    r: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    output: Tensor | None,
    s: Tensor | None,
    saved: Saved,
    settings: Settings,
    has_residual: bool,
) -> Gradients:
    """Gradients of all inputs.

    Args:
        grad_plain: Gradient of the output before the second scale, None where nobody uses it.
        grad_scaled: Gradient of the output after it.
        y: As in the forward pass, like the further inputs.
        r: The first scale.
        weight: Scale of the norm.
        bias: Shift of the norm.
        output: The output after the second scale where there is one, else that before; only looked at where there is
            a residual, without which it can be computed again.
        s: The second scale.
        saved: What forward left.
        settings: As in the forward pass.
        has_residual: Whether a residual was added.
    """
    precise, count = y.float(), y.numel() // y.shape[1]
    first = torch.ones_like(saved.row_mean) if r is None else r.float()
    second = torch.ones_like(saved.row_mean) if s is None else nonzero(s)
    rstd = torch.rsqrt(saved.var + settings.eps)
    xhat = (precise * _wide(first) - saved.mean[:, None, None]) * rstd[:, None, None]
    if has_residual:
        assert output is not None
        a = output.float() / _wide(second)
    else:
        a = xhat * weight.float()[:, None, None] + bias.float()[:, None, None]
        a = a.relu() if settings.relu else a
    g = torch.zeros_like(precise) if grad_plain is None else grad_plain.float()
    grad_s = None
    if grad_scaled is not None and s is not None:
        g = g + grad_scaled.float() * _wide(second)
        grad_s = (grad_scaled.float() * a).sum((2, 3)).to(s.dtype)
    gz = g * (a != 0) if settings.relu else g
    grad_bias, grad_weight = gz.sum((0, 2, 3)), (gz * xhat).sum((0, 2, 3))
    slope = (weight.float() * rstd)[:, None, None]
    gv = slope * (gz - grad_bias[:, None, None] / count - xhat * grad_weight[:, None, None] / count)
    grad_r = None if r is None else (gv * precise).sum((2, 3)).to(r.dtype)
    grad_residual = gz.to(y.dtype) if has_residual else None
    return Gradients((gv * _wide(first)).to(y.dtype), grad_r, grad_weight, grad_bias, grad_residual, grad_s)


def _wide(factor: Tensor) -> Tensor:
    return factor[:, :, None, None]
