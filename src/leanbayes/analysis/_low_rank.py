"""Matrices of standard deviations as products of two non-negative factors of a few columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Entries of a factor below this part of its column's largest are raised to it: they have to have a logarithm.
_LEAST = 1e-7
# L-BFGS ends after so many steps, or where one improves a loss per element by less.
_STEPS = 300
_TOLERANCE = 1e-10
# Steps that only ever improve, before those that look further.
_FIRST_STEPS = 30
_RANDOM_STARTS = 2
# What is added to zeros of a start, in parts of their column's mean.
_START = 0.05


class Factors(NamedTuple):
    """Non-negative matrices u ``[out, k]`` and v ``[rest, k]`` that stand for ``u @ v.T``."""

    u: Tensor
    v: Tensor

    def product(self) -> Tensor:
        """The matrix ``[out, rest]``."""
        return self.u @ self.v.mT

    def positive(self) -> Factors:
        """Without zeros, which multiplicative steps would keep."""
        u, v = (part + _START * part.mean(0) + torch.finfo(part.dtype).tiny for part in self)
        return Factors(u, v)

    def logs(self) -> Factors:
        """Finite logarithms of both, each column's length shared evenly between them."""
        u, v = (part.clamp_min(_LEAST * part.amax(0)).clamp_min(torch.finfo(part.dtype).tiny).log() for part in self)
        shift = (u.mean(0) - v.mean(0)) / 2
        return Factors(u - shift, v + shift)


def divergence(std: Tensor, other: Tensor) -> Tensor:
    r"""KL(N(m, std^2) || N(m, other^2)) of each element: :math:`\log(o/s) + s^2 / 2 o^2 - 1/2`."""
    ratio = std / other
    found = 0.5 * ratio.square() - ratio.log() - 0.5
    return torch.where(other > 0, found, torch.inf)


def truncated(matrix: Tensor, rank: int) -> Tensor:
    """The best approximation of a rank, with zeros for what is negative in it."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return (left[:, :rank] * values[:rank] @ right[:rank]).clamp_min(0)


def svd_factors(matrix: Tensor, rank: int) -> Factors:
    """Non-negative factors of the truncated singular value decomposition of a positive matrix.

    Those of rank 1 are the singular vectors, which are positive (Perron-Frobenius). A non-negative matrix of rank 2 is
    such a product exactly: its rows lie in a plane between the two that are farthest apart, and are sums of them
    (Cohen & Rothblum 1993); what is negative is clipped. From rank 3 on there need not be any, and the closest ones in
    squared error are searched.
    """
    rows, right = _decomposed(matrix, rank)
    factors = _spanned(rows, right)
    if rank < 3:
        return factors
    target, scale = (rows @ right.mT).clamp_min(0), matrix.square().mean()
    return _descend(factors.positive(), lambda product: (product - target).square().mean() / scale)


def kl_factors(std: Tensor, rank: int, *, reverse: bool = False) -> Factors:
    r"""Factors that minimise the summed KL(N(m, std^2) || N(m, (u v^T)^2)); from rank 2 on the minimum is a local one.

    First steps multiply u by :math:`((s^2/p^3) v \,/\, (1/p) v)^{1/3}`, p being the product, and v likewise: the
    minimum of a bound that touches the divergence, so that none of them makes it worse. L-BFGS in the logarithms does
    the rest, from the best of some starts.

    Args:
        std: The matrix ``[out, rest]``.
        rank: Number of columns.
        reverse: Whether to minimise KL(N(m, (u v^T)^2) || N(m, std^2)) instead; the steps then multiply by
            :math:`((1/p) v \,/\, (p/s^2) v)^{1/2}`.
    """
    level = std.log().mean().exp()
    std = std / level

    def loss_of(product: Tensor) -> Tensor:
        return (divergence(product, std) if reverse else divergence(std, product)).mean()

    found = []
    for start in _starts(std, rank):
        factors = start.positive()
        for _ in range(_FIRST_STEPS):
            factors = _multiply(std, factors, reverse=reverse)
        found.append(factors)
    u, v = _descend(min(found, key=lambda factors: float(loss_of(factors.product()))), loss_of)
    return Factors(u * level, v)


def _starts(std: Tensor, rank: int) -> list[Factors]:
    starts = [_spanned(*_decomposed(std, rank))]
    if rank > 1:
        generator = torch.Generator().manual_seed(0)
        level = (std.mean() / rank).sqrt()
        for _ in range(_RANDOM_STARTS):
            u, v = (torch.rand(size, rank, generator=generator, dtype=torch.float64) for size in std.shape)
            starts.append(Factors(2 * level * u.to(std), 2 * level * v.to(std)))
    return starts


def _decomposed(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Left singular vectors times the values ``[out, k]``, the first positive on average, and the right ones."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rows, right = left[:, :rank] * values[:rank], right[:rank].mT
    sign = torch.ones_like(values[:rank])
    sign[0] = rows[:, 0].sum().sign()
    return rows * sign, right * sign


def _corners(rows: Tensor) -> list[int]:
    """Rows ``[out, k]`` between whose directions the others lie, or nearly: k of them, each far from those before."""
    if rows.shape[1] == 2:  # two are exact
        angle = torch.atan2(rows[:, 1], rows[:, 0])
        return [int(angle.argmin()), int(angle.argmax())]
    rest = rows / rows[:, :1].clamp_min(_LEAST * rows[:, 0].max())
    found: list[int] = []
    for _ in range(rows.shape[1]):
        found.append(int(rest.square().sum(1).argmax()))
        direction = rest[found[-1]] / rest[found[-1]].norm().clamp_min(torch.finfo(rest.dtype).tiny)
        rest = rest - torch.outer(rest @ direction, direction)
    return found


def _spanned(rows: Tensor, right: Tensor) -> Factors:
    """Factors of ``rows @ right.T`` as non-negative sums of k of its own rows; what is negative is clipped."""
    chosen = rows[_corners(rows)]
    # Not `solve`: corners of a matrix of lower rank are no basis.
    return Factors((rows @ torch.linalg.pinv(chosen)).clamp_min(0), (right @ chosen.mT).clamp_min(0))


def _multiply(std: Tensor, factors: Factors, *, reverse: bool = False) -> Factors:
    u, v = factors
    for _ in range(2):  # u, then v
        product = u @ v.mT
        inverse = 1 / product
        if reverse:
            up, down, power = inverse, product / std.square(), 1 / 2
        else:
            up, down, power = (std * inverse).square() * inverse, inverse, 1 / 3
        u, v, std = v, u * ((up @ v) / (down @ v)) ** power, std.mT
    return Factors(u, v)


def _descend(start: Factors, loss_of: Callable[[Tensor], Tensor]) -> Factors:
    """The factors with the least ``loss_of(product)`` that L-BFGS finds in their logarithms, never worse."""
    logs = [part.clone().requires_grad_() for part in start.logs()]
    optimiser = torch.optim.LBFGS(
        logs,
        max_iter=_STEPS,
        history_size=20,
        tolerance_grad=1e-10,
        tolerance_change=_TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(logs[0].exp() @ logs[1].exp().mT)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(evaluate)
    found = Factors(*(part.detach().exp() for part in logs))
    with torch.no_grad():
        better = bool(loss_of(found.product()) <= loss_of(start.product()))
    return found if better else start
