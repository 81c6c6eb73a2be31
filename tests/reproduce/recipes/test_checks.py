"""Checks hold at their limits, and say by how much they fail."""

import pytest

from leanbayes.reproduce.recipes._checks import at_least, at_most, every, in_order, no_less_accurate, paired_z


@pytest.mark.parametrize("values", [[99.1, 99.2, 99.3], [99.19, 99.21, 99.2], [99.2]])
def test_a_mean_at_the_limit_holds(values):
    assert at_least("accuracy", values, 99.2).holds
    assert at_most("accuracy", values, 99.2).holds


def test_a_mean_beyond_it_does_not():
    short = at_least("accuracy", [99.2, 99.19, 99.2], 99.2, " %")
    assert not short.holds and short.gap == "accuracy: 99.197 %, 0.00333 short"
    above = at_most("accuracy", [12.5], 12, " %")
    assert not above.holds and above.gap == "accuracy: 12.5 %, 0.5 above"


def test_every_value_must_lie_between():
    assert every("log alpha", [5, 20], 5, 20).holds
    off = every("log alpha", [4.9, 6, 20.1], 5, 20)
    assert not off.holds and off.gap == "log alpha: 4.9, 20.1 outside 5 to 20"


def test_an_order_names_the_pairs_that_break_it():
    assert in_order("bound", {"a": 3, "b": 2, "c": 1}).holds
    broken = in_order("bound", {"a": 3, "b": 1, "c": 2})
    assert not broken.holds and broken.gap == "bound: b 1 is not above c 2"


def test_pairs_are_compared_where_they_differ():
    # Nine examples for the first alone, one for the second alone, and any number that do not tell.
    right, others = [1] * 9 + [0] + [1, 0] * 20, [0] * 9 + [1] + [1, 0] * 20
    assert paired_z(right, others) == -paired_z(others, right) == pytest.approx(8 / 10**0.5)
    assert paired_z([1, 0], [1, 0]) == 0.0


def test_examples_of_two_networks_must_be_the_same():
    with pytest.raises(ValueError, match="same examples"):
        paired_z([1, 0], [1])


@pytest.mark.parametrize(("right", "holds"), [([1] * 90 + [0] * 10, True), ([0] * 40 + [1] * 60, False)])
def test_a_paired_test_decides(right, holds):
    check = no_less_accurate("EMP", "vanilla", [right, right], [[1] * 85 + [0] * 15] * 2)
    assert check.holds is holds
    assert holds or check.gap.startswith("EMP against vanilla: z = -")


def test_seeds_count_together():
    # Each alone is within chance, all of them are not.
    one = [0] * 3 + [1] * 7, [1] * 10
    assert no_less_accurate("EMP", "vanilla", [one[0]], [one[1]]).holds
    assert not no_less_accurate("EMP", "vanilla", [one[0]] * 4, [one[1]] * 4).holds
