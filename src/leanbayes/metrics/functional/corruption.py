"""Errors on corrupted images, summed up over corruption types and severities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Errors = Mapping[str, Sequence[float]] | Tensor
Reference = Mapping[str, Sequence[float] | float] | Tensor


class IntensityTable(NamedTuple):
    """A metric per intensity.

    Attributes:
        mean: Mean over corruption types, ``[severities]``.
        std: Standard deviation over corruption types, ``[severities]``.
    """

    mean: Tensor
    std: Tensor


def corruption_errors(
    errors: Errors,
    reference: Reference,
    *,
    clean: float | None = None,
    reference_clean: float | None = None,
) -> Tensor:
    r"""Error on each corruption type relative to a reference network's, ``[C]`` in the order of ``errors``.

    With :math:`E_c = \sum_{s=1}^{5} E_{c,s}`, and with the clean errors for the relative form,

    .. math:: \frac{E_c}{E_c^\mathrm{ref}} \qquad\text{and}\qquad
        \frac{E_c - 5 E_\mathrm{clean}}{E_c^\mathrm{ref} - 5 E_\mathrm{clean}^\mathrm{ref}}

    as fractions: 1 is as good as the reference (published tables multiply by 100). Where the reference is zero, the
    result is infinite or NaN.

    Args:
        errors: Top-1 errors from 0 to 1, a mapping from corruption type to one error per severity, or ``[C, S]``.
        reference: The reference's in the same form, or its mean over severities: one number per type, or ``[C]``.
        clean: Error without corruption, for the relative form.
        reference_clean: The reference's error without corruption.

    Example:
        >>> errors = {"fog": [0.25, 0.5], "snow": [0.5, 0.5]}
        >>> corruption_errors(errors, {"fog": [0.5, 0.5], "snow": [0.5, 0.75]})
        tensor([0.7500, 0.8000])
        >>> corruption_errors(errors, {"fog": 0.5, "snow": 0.625}, clean=0.25, reference_clean=0.125)
        tensor([0.3333, 0.5000])
    """
    own, other = _pair(errors, reference)
    return _ratios(own, other, clean, reference_clean).float()


def mean_corruption_error(errors: Errors, reference: Reference) -> Tensor:
    r"""Mean corruption error (mCE): the mean over corruption types of :math:`E_c / E_c^\mathrm{ref}`.

    Args:
        errors: Top-1 errors; see `corruption_errors`.
        reference: The reference network's errors.

    Example:
        >>> mean_corruption_error(torch.tensor([[0.25, 0.5], [0.5, 0.5]]), torch.tensor([0.5, 0.625]))
        tensor(0.7750)
    """
    own, other = _pair(errors, reference)
    return _ratios(own, other).mean().float()


def relative_mean_corruption_error(
    errors: Errors, reference: Reference, clean: float, reference_clean: float
) -> Tensor:
    r"""Relative mCE: how much corruption adds to the error, over what it adds to the reference's.

    .. math:: \frac{1}{C} \sum_c
        \frac{E_c - 5 E_\mathrm{clean}}{E_c^\mathrm{ref} - 5 E_\mathrm{clean}^\mathrm{ref}}

    Args:
        errors: Top-1 errors; see `corruption_errors`.
        reference: The reference network's errors.
        clean: Error without corruption.
        reference_clean: The reference's error without corruption.

    Example:
        >>> errors = torch.tensor([[0.25, 0.5], [0.5, 0.5]])
        >>> relative_mean_corruption_error(errors, torch.tensor([0.5, 0.625]), clean=0.25, reference_clean=0.125)
        tensor(0.4167)
    """
    own, other = _pair(errors, reference)
    return _ratios(own, other, clean, reference_clean).mean().float()


def intensity_table(values: Mapping[str, Sequence[float]] | Tensor, *, correction: int = 0) -> IntensityTable:
    """Mean and standard deviation of any metric over corruption types, for each intensity.

    Args:
        values: A mapping from corruption type to one value per severity, or ``[C, S]``.
        correction: 0 for the deviation of these very types, 1 for an unbiased estimate over a population of types.

    Example:
        >>> intensity_table({"fog": [0.1, 0.2], "snow": [0.3, 0.6]})
        IntensityTable(mean=tensor([0.2000, 0.4000]), std=tensor([0.1000, 0.2000]))
    """
    table = _table(values)
    if table.dim() != 2 or not len(table):
        raise ValueError(f"expected one value per corruption type and severity, [C, S], not {tuple(table.shape)}")
    return IntensityTable(table.mean(0).float(), table.std(0, correction=correction).float())


def reference_errors(reference: Mapping[str, Sequence[float] | float], severities: int) -> dict[str, float]:
    """The reference's mean error over so many severities for each corruption type, checked."""
    if not isinstance(reference, Mapping) or not reference:
        raise ValueError("reference errors are a mapping from corruption type to one error, or one per severity")
    table = _checked(_table(reference))
    if table.dim() == 2 and table.shape[1] != severities:
        raise ValueError(
            f"the reference has errors at {table.shape[1]} severities, but the metric is over {severities}; pass "
            f"severities={table.shape[1]}, or the reference's errors at those {severities}"
        )
    return dict(zip(reference, _over_severities(table).tolist()))


def check_clean(value: float, name: str) -> None:
    """Raise unless the error is a fraction."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name} is an error from 0 to 1, not {value!r}; divide percentages by 100")


def _pair(errors: Errors, reference: Reference) -> tuple[Tensor, Tensor]:
    if isinstance(errors, Mapping) != isinstance(reference, Mapping):
        raise TypeError("errors and reference errors are both mappings or both tensors; pass them in the same form")
    if isinstance(errors, Mapping) and isinstance(reference, Mapping):
        odd = sorted(set(errors) ^ set(reference))
        if odd:
            raise ValueError(f"errors and reference errors differ in these corruption types: {', '.join(odd)}")
        reference = {name: reference[name] for name in errors}
    own, other = _checked(_table(errors)), _checked(_table(reference))
    if own.dim() != 2 or not own.numel() or other.shape not in (own.shape, own.shape[:1]):
        raise ValueError(
            f"errors of shape {tuple(own.shape)} do not fit reference errors of shape {tuple(other.shape)}; "
            "expected [C, S], and [C, S] or [C]"
        )
    return own, other


def _table(values: Reference) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().double()
    rows = [torch.as_tensor(row, dtype=torch.float64) for row in values.values()]
    if len({row.shape for row in rows}) > 1:
        raise ValueError("every corruption type needs the same number of severities; fill in or drop those that differ")
    return torch.stack(rows) if rows else torch.empty(0, dtype=torch.float64)


def _checked(errors: Tensor) -> Tensor:
    if not bool(((errors >= 0) & (errors <= 1)).all()):
        raise ValueError("errors are from 0 to 1, but some are not; divide percentages by 100 and fill in NaN")
    return errors


def _over_severities(errors: Tensor) -> Tensor:
    return errors.mean(1) if errors.dim() == 2 else errors


def _ratios(own: Tensor, other: Tensor, clean: float | None = None, reference_clean: float | None = None) -> Tensor:
    # Means over severities stand for sums: the factor cancels, and the clean error is then subtracted once.
    own, other = _over_severities(own), _over_severities(other)
    if clean is None and reference_clean is None:
        return own / other
    if clean is None or reference_clean is None:
        raise ValueError("the relative form needs both clean and reference_clean")
    check_clean(clean, "clean")
    check_clean(reference_clean, "reference_clean")
    return (own - clean) / (other - reference_clean)
