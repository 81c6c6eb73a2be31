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
