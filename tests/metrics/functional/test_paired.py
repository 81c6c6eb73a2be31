import pytest
import torch

from leanbayes.metrics.functional import paired_test


def test_right_and_wrong_is_mcnemar():
    # Nine examples for the first alone, one for the second alone, and any number that do not tell.
    first = torch.tensor([1] * 9 + [0] + [1, 0] * 20)
    second = torch.tensor([0] * 9 + [1] + [1, 0] * 20)
    found = paired_test(first, second)
    assert float(found.z) == pytest.approx((9 - 1) / (9 + 1) ** 0.5)
    assert float(found.difference) == pytest.approx(8 / 50)
    assert float(paired_test(second, first).z) == -float(found.z)
    assert paired_test(first, first) == (0.0, 0.0)


def test_equal_models_are_told_apart_as_often_as_the_level_says():
    generator = torch.Generator().manual_seed(0)
    hard = torch.randn(400, 1, 300, generator=generator).exp()  # what makes examples hard is shared
    first, second = (hard + torch.randn(400, 3, 300, generator=generator) for _ in range(2))
    one_seed = [abs(float(paired_test(a[0], b[0]).z)) > 1.96 for a, b in zip(first, second)]
    assert sum(one_seed) / 400 == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / 400) ** 0.5)
    # With the spread over seeds on top, it is careful.
    assert sum(abs(float(paired_test(a, b).z)) > 1.96 for a, b in zip(first, second)) / 400 < 0.05


def test_seeds_that_disagree_make_a_difference_less_sure():
    gap = torch.linspace(0.5, 1.5, 100)
    steady, shaken = torch.stack([gap, gap]), torch.stack([gap - 0.8, gap + 0.8])
    nothing = torch.zeros(2, 100)
    assert float(paired_test(shaken, nothing).difference) == pytest.approx(1.0)
    assert float(paired_test(steady, nothing).z) == pytest.approx(float(paired_test(gap, nothing[0]).z))
    error = float(gap.square().sum()) / 100**2 + 2 * 0.8**2 / 2
    assert float(paired_test(shaken, nothing).z) == pytest.approx(1 / error**0.5)


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((0,), (0,)), ((1, 2, 3), (1, 2, 3)), ((2, 3), (3,))])
def test_other_examples_are_refused(shapes):
    with pytest.raises(ValueError, match="the same examples"):
        paired_test(*(torch.zeros(shape) for shape in shapes))


def test_copies_in_a_group_say_no_more_than_one():
    first, second = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(3))
    alone = paired_test(first, second)
    groups = torch.arange(40).repeat_interleave(5) * 7 - 3
    many = first.repeat_interleave(5, 1), second.repeat_interleave(5, 1)
    copies = paired_test(*many, groups)
    assert float(copies.z) == pytest.approx(float(alone.z), rel=1e-6)
    assert float(copies.difference) == pytest.approx(float(alone.difference), rel=1e-6)
    assert abs(float(paired_test(*many).z)) > abs(float(alone.z))


def test_groups_of_one_are_examples():
    first, second = torch.randn(2, 50, generator=torch.Generator().manual_seed(4))
    assert paired_test(first, second, torch.arange(50)) == paired_test(first, second)


def test_equal_models_on_groups_are_told_apart_as_often_as_the_level_says():
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(100).repeat_interleave(4)
    shared = torch.randn(400, 2, 100, generator=generator).repeat_interleave(4, 2)
    first, second = (shared + 0.5 * torch.randn(400, 2, 400, generator=generator)).unbind(1)
    found = sum(abs(float(paired_test(a, b, groups).z)) > 1.96 for a, b in zip(first, second)) / 400
    assert found == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / 400) ** 0.5)
    assert sum(abs(float(paired_test(a, b).z)) > 1.96 for a, b in zip(first, second)) / 400 > 0.2


def test_groups_of_other_examples_are_an_error():
    with pytest.raises(ValueError, match="one group for each of the 3 examples, not 2"):
        paired_test(torch.ones(3), torch.zeros(3), torch.arange(2))
