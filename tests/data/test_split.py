import numpy as np
import pytest

from leanbayes.data._split import held_count, hold_out


def test_parts_are_a_partition_and_depend_on_the_seed_alone():
    kept, held = hold_out(100, 0.3, seed=4, stream=0)
    assert len(held) == 30
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(100))
    np.random.seed(1)
    again = hold_out(100, 0.3, seed=4, stream=0)
    assert np.array_equal(again[0], kept) and np.array_equal(again[1], held)


def test_the_choice_is_the_same_for_ever():
    # Written down once: a later version must choose the same rows.
    assert hold_out(20, 5, seed=0, stream=1)[1].tolist() == [7, 11, 15, 16, 19]


def test_seeds_and_streams_differ():
    choices = {tuple(hold_out(50, 10, seed=s, stream=t)[1]) for s in range(5) for t in range(2)}
    assert len(choices) == 10


def test_classes_are_held_out_in_proportion():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    labels = np.random.RandomState(0).permutation(labels)
    _, held = hold_out(160, 0.2, seed=1, stream=0, labels=labels)
    assert len(held) == 32
    assert np.bincount(labels[held]).tolist() == [20, 10, 2]


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.0, 0), (0.25, 25), (7, 7), (7.0, 7), (1, 1)])
def test_shares_and_counts(share, count):
    assert held_count(100, share) == count


@pytest.mark.parametrize("share", [-1, -0.1, 1.0, 1.5, True, float("nan")])
def test_what_is_neither_is_an_error(share):
    with pytest.raises(ValueError, match="share from 0 to below 1 or a number of examples"):
        held_count(100, share)


def test_holding_out_everything_is_an_error():
    with pytest.raises(ValueError, match="cannot hold out 10 of 10 examples"):
        hold_out(10, 10, seed=0, stream=0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="a seed is a whole number"):
        hold_out(10, 2, seed=seed, stream=0)


GROUPS = np.random.RandomState(5).permutation(np.repeat(np.arange(60), np.arange(60) % 7 + 1))


@pytest.mark.parametrize("labels", [None, GROUPS % 3 + 5], ids=["values", "classes"])
def test_no_group_is_divided(labels):
    kept, held = hold_out(len(GROUPS), 0.2, seed=3, stream=0, labels=labels, groups=GROUPS)
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(GROUPS)))
    assert not set(GROUPS[kept]) & set(GROUPS[held])
    assert abs(len(held) - 0.2 * len(GROUPS)) <= (1 if labels is None else 2)
    assert np.array_equal(held, hold_out(len(GROUPS), 0.2, seed=3, stream=0, labels=labels, groups=GROUPS)[1])
    others = {tuple(hold_out(len(GROUPS), 0.2, seed, stream=0, labels=labels, groups=GROUPS)[1]) for seed in range(5)}
    assert len(others) == 5


def test_groups_that_are_single_rows_are_held_out_as_rows_are():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    _, held = hold_out(160, 0.2, seed=1, stream=0, labels=labels, groups=np.arange(160))
    assert np.bincount(labels[held]).tolist() == [20, 10, 2]


def test_classes_are_as_even_as_groups_allow():
    # One patient in ten is ill, and each has five visits.
    groups, labels = np.repeat(np.arange(100), 5), np.repeat(np.arange(100) % 10 == 0, 5).astype(int)
    for seed in range(20):
        _, held = hold_out(500, 0.2, seed, stream=0, labels=labels, groups=groups)
        assert np.bincount(labels[held]).tolist() == [90, 10]


def test_the_class_of_a_single_group_stays_where_it_is_learnt():
    groups = np.repeat(np.arange(30), 4)
    labels = (groups == 7).astype(int) + 2 * (groups % 2)
    for seed in range(20):
        assert 7 in groups[hold_out(120, 0.2, seed, stream=0, labels=labels, groups=groups)[0]]


def test_few_groups():
    groups = np.repeat([4, 9, 2], [50, 30, 20])
    assert set(groups[hold_out(100, 0.2, seed=0, stream=0, groups=groups)[1]]) == {2}
    # None is as small as what is asked for, and the smallest is closest.
    assert set(groups[hold_out(100, 0.01, seed=0, stream=0, groups=groups)[1]]) == {2}
    assert set(groups[hold_out(100, 0.99, seed=0, stream=0, groups=groups)[1]]) != {2, 4, 9}
    with pytest.raises(ValueError, match="cannot hold out a part of 1 group; at least 2 are needed"):
        hold_out(10, 0.2, seed=0, stream=0, groups=np.zeros(10, int))
