"""Statistical assertions whose tolerance comes from the standard error of what is compared."""

from __future__ import annotations

import torch
from torch import Tensor

# Added to every tolerance, relative to the size of the values: sums in float32 are not exact.
_ROUNDING = 1e-5


def assert_mean_close(samples: Tensor, expected: Tensor | float, sigmas: float = 5.0, what: str = "mean") -> None:
    """Fail where the mean of samples ``[N, ...]`` is further from `expected` than its standard error explains.

    Args:
        samples: Independent draws, counted by the first axis.
        expected: The true mean, broadcastable to one draw.
        sigmas: Standard errors allowed.
        what: How the message names the quantity.

    Example:
        >>> import torch
        >>> from leanbayes.testing import assert_mean_close
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> assert_mean_close(3 + torch.randn(1000, 2), 3.0)
    """
    samples = samples.double()
    _compare(samples.mean(0), expected, _mean_error(samples), sigmas, what)


def assert_variance_close(
    samples: Tensor, expected: Tensor | float, sigmas: float = 5.0, what: str = "variance"
) -> None:
    """Fail where the variance of samples ``[N, ...]`` is further from `expected` than its standard error explains."""
    samples = samples.double()
    _compare(samples.var(0), expected, _variance_error(samples), sigmas, what)


def assert_same_moments(first: Tensor, second: Tensor, sigmas: float = 5.0, what: str = "samples") -> None:
    """Fail where two sets of draws ``[N, ...]`` and ``[M, ...]`` differ in mean or variance of an element."""
    first, second = first.double(), second.double()
    error = (_mean_error(first).square() + _mean_error(second).square()).sqrt()
    _compare(first.mean(0), second.mean(0), error, sigmas, f"mean of {what}")
    error = (_variance_error(first).square() + _variance_error(second).square()).sqrt()
    _compare(first.var(0), second.var(0), error, sigmas, f"variance of {what}")


def assert_same_quantiles(
    first: Tensor,
    second: Tensor,
    levels: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9),
    sigmas: float = 5.0,
    what: str = "samples",
) -> None:
    """Fail where two sets of draws differ in a quantile of an element: the comparison for heavy tails.

    The fraction of the first draws under a quantile of the second is compared with the quantile's level.
    """
    first, second = first.double(), second.double()
    tiny = _ROUNDING * second.abs().median()
    for level in levels:
        edge = second.quantile(level, 0)
        # Draws that are equal but for rounding count as half under, half over.
        under = ((first < edge - tiny).double() + (first <= edge + tiny).double()).mean(0) / 2
        reference = ((second < edge - tiny).double() + (second <= edge + tiny).double()).mean(0) / 2
        error = (level * (1 - level) * (1 / len(first) + 1 / len(second))) ** 0.5
        _compare(under, reference, torch.full_like(under, error), sigmas, f"fraction of {what} under quantile {level}")


def assert_probability_close(
    hits: Tensor, probability: Tensor | float, sigmas: float = 5.0, what: str = "fraction"
) -> None:
    """Fail where the fraction of true entries of `hits` ``[N, ...]`` does not fit a probability."""
    expected = torch.as_tensor(probability, dtype=torch.float64, device=hits.device)
    error = (expected * (1 - expected) / len(hits)).sqrt().expand(hits.shape[1:])
    _compare(hits.double().mean(0), expected, error, sigmas, what)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5, what: str = "values") -> None:
    """Fail where values differ by more than `tolerance` of their size (of 1 where they are small)."""
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    error = float((actual.detach().double() - expected.detach().double()).abs().max()) if expected.numel() else 0.0
    if not error <= tolerance * scale:
        raise AssertionError(f"{what}: off by {error:.3g}, allowed are {tolerance * scale:.3g}")


def _mean_error(samples: Tensor) -> Tensor:
    return (samples.var(0) / len(samples)).sqrt()


def _variance_error(samples: Tensor) -> Tensor:
    n, squares = len(samples), (samples - samples.mean(0)).square()
    # The second term is small, but all there is where the square is constant, as for -1 and +1.
    return (squares.var(0) / n + 2 * squares.mean(0).square() / n**2).sqrt()


def _compare(actual: Tensor, expected: Tensor | float, error: Tensor, sigmas: float, what: str) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64, device=actual.device).detach().expand(actual.shape)
    actual = actual.detach()
    allowed = sigmas * error.detach() + _ROUNDING * (1e-2 + expected.abs())
    distance = (actual - expected).abs()
    bad = ~(distance <= allowed)  # NaN is bad too
    if bool(bad.any()):
        worst = int((distance / allowed).nan_to_num(torch.inf).argmax())
        got, want = float(actual.reshape(-1)[worst]), float(expected.reshape(-1)[worst])
        raise AssertionError(
            f"{what}: element {worst} is {got:.6g}, expected {want:.6g} within {float(allowed.reshape(-1)[worst]):.2g} "
            f"({sigmas:g} standard errors); {int(bad.sum())} of {actual.numel()} elements are off"
        )
