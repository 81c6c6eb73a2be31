"""A test of two models on the same examples."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from leanbayes.metrics.functional._inputs import checked_tensor


class PairedTest(NamedTuple):
    """What the same examples say about two models.

    Attributes:
        difference: Mean of the first minus the second.
        z: The difference in standard errors; 0 if no example tells the two apart.
    """

    difference: Tensor
    z: Tensor


def paired_test(first: Tensor, second: Tensor, groups: Tensor | None = None) -> PairedTest:
    r"""How many standard errors two models are apart, example by example.

    .. math:: z = \frac{\bar d}{\sqrt{\frac{1}{N^2} \sum_i d_i^2 + \frac{1}{S} \mathrm{Var}_s(\bar d_s)}}

    with the differences :math:`d_i` averaged over seeds; the second term applies from two seeds on, and accounts for
    how much the difference changes from one training to the next. For one seed and values of 0 and 1 this is McNemar's
    statistic. Examples of one group, such as the visits of one patient, may be alike: with groups, the sum runs over
    these, and :math:`d_i` is the sum of the differences of one.

    Args:
        first: One value per example of the first model (a loss, or whether it is right), ``[N]``, or ``[S, N]`` for S
            seeds.
        second: The same of the second model, for the same examples.
        groups: A number for the group of each example ``[N]``; None where examples are independent.

    Returns:
        The difference and z; beyond 1.96 in size, two models differ at the level of 5 %.

    Example:
        >>> import torch
        >>> right, other = torch.tensor([1, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 0])
        >>> paired_test(right, other)
        PairedTest(difference=tensor(0.8000), z=tensor(2.))
    """
    first, second = checked_tensor(first, "values of the first model"), checked_tensor(second, "those of the second")
    if first.shape != second.shape or first.dim() not in (1, 2) or not first.numel():
        raise ValueError(
            f"two models are compared on the same examples, [N] or [S, N], not {tuple(first.shape)} and "
            f"{tuple(second.shape)}"
        )
    gap = (first.double() - second.double()).reshape(-1, first.shape[-1])  # [S, N]
    seeds, count = gap.shape
    each = gap.mean(0)
    if groups is not None:
        if groups.shape != (count,):
            raise ValueError(f"expected one group for each of the {count} examples, not {len(groups)}")
        place = groups.unique(return_inverse=True)[1].to(each.device)
        each = each.new_zeros(int(place.max()) + 1).index_add(0, place, each)
    variance = each.square().sum() / count**2
    if seeds > 1:
        variance = variance + gap.mean(1).var() / seeds
    difference = gap.mean()
    z = difference / variance.sqrt() if variance > 0 else difference.new_zeros(())
    return PairedTest(difference.float(), z.float())
