"""The noise of real targets, from the residuals of rows that were not trained on."""

from __future__ import annotations

import torch
from torch import Tensor

# Of targets with standard deviation 1; keeps the precision of targets without noise finite.
LEAST_VARIANCE = 1e-6
_ITERATIONS, _TOLERANCE = 100, 1e-3


def held_out_variance(
    squares: Tensor, weights: Tensor | None = None, *, shared: bool = False, log_scale: Tensor | None = None
) -> Tensor:
    r"""The noise variance under which a mixture of predictions explains rows best.

    With residuals :math:`r_{sid}` of samples s, rows i and outputs d, it maximises
    :math:`\sum_i w_i \log \frac{1}{S} \sum_s \prod_d N(r_{sid}; 0, v_d)` by expectation maximisation: each row divides
    its weight among the samples by how well they explain it, and the variance is the mean square under those shares.
    So the spread of the samples is not counted again as noise. The result is multiplied by n / (n - 2) for n
    residuals: of all factors this gives a plugged-in normal the least expected NLL on new rows.

    Args:
        squares: Squared residuals ``[S, N, D]``, or ``[S, N, T, D]`` with several positions in each row.
        weights: How often each row counts ``[N]``.
        shared: One variance for all outputs instead of one for each.
        log_scale: Where every residual has a variance of its own, by which its square is divided, and the result is a
            factor on top: the logarithms of those variances, shaped as the squares.

    Returns:
        Variances ``[D]``, or one number, in double precision.

    Example:
        >>> held_out_variance(torch.full((1, 102, 1), 4.0))
        tensor([4.0800], dtype=torch.float64)
    """
    samples, rows, *_, outputs = squares.shape
    squares = squares.double().reshape(samples, rows, -1, outputs)
    share = torch.ones(rows, dtype=torch.float64, device=squares.device) if weights is None else weights.double()
    count = float(share.sum().square() / share.square().sum())  # as many rows of equal weight say as much
    share = share / share.sum()
    own = 0.0 if log_scale is None else log_scale.double().reshape(squares.shape).sum((2, 3))

    def mean_square(weight: Tensor) -> Tensor:  # [S, N]
        per_output = torch.einsum("sn,sntd->d", weight, squares) / squares.shape[2]
        return (per_output.mean() if shared else per_output).clamp_min(LEAST_VARIANCE)

    variance = mean_square(share.expand(samples, rows) / samples)
    for _ in range(_ITERATIONS if samples > 1 else 0):
        log_density = -0.5 * ((squares / variance).sum((2, 3)) + own)
        before, variance = variance, mean_square(log_density.softmax(0) * share)
        if bool(((variance / before).log().abs() < _TOLERANCE).all()):
            break
    residuals = count * squares.shape[2] * (outputs if shared else 1)
    return variance * (residuals / max(residuals - 2, 1.0))
