"""The recipe vn-rl: what it concludes from returns."""

import pytest

from leanbayes.reproduce.recipes import vn_rl


def returns(first, last, seeds=3):
    """Twenty episodes of each seed: ten that gain `first`, ten that gain `last`, a little apart between the seeds."""
    return [[first + 0.1 * seed] * 10 + [last - 0.1 * seed] * 10 for seed in range(seeds)]


def test_slow_and_better_is_what_was_published():
    found = {"plain": returns(50, 100), "noisy": returns(60, 110), "variance": returns(20, 150)}
    assert all(check.holds for check in vn_rl._checks("CartPole", found, last=5))


def test_slow_and_worse_falls_short_with_the_gap():
    found = {"plain": returns(50, 100), "noisy": returns(60, 110), "variance": returns(20, 70)}
    checks = vn_rl._checks("CartPole", found, last=5)
    assert [check.holds for check in checks] == [True, False, True, False]
    assert "mean returns 69.9 and 99.9, difference -30" in checks[1].gap


def test_a_difference_within_two_standard_errors_shows_nothing():
    assert vn_rl._above("a", [3.0, 5.0, 7.0], [1.0, 1.0, 1.0]).holds
    check = vn_rl._above("a", [3.0, 5.0, 7.0], [2.0, 7.0, 3.0])
    assert not check.holds and check.gap.endswith("mean returns 5 and 4, difference 1 ± 1.7)")


def test_rows_are_means_of_the_last_episodes_and_at_the_best_rate_of_the_first_half():
    found = {("variance", 1e-3): returns(-500, -100), ("variance", 3e-3): returns(-500, -400)}
    rows = vn_rl._rows("Acrobot", found, {"variance": 1e-3}, last=5)
    names = ["Acrobot, variance network, lr 0.001 (best)"] * 2
    assert [row.name for row in rows] == [*names, "Acrobot, variance network, lr 0.003"]
    assert rows[0].measured == pytest.approx([-100, -100.1, -100.2])
    assert rows[1].measured == pytest.approx([-500, -499.9, -499.8])
    assert rows[2].measured == pytest.approx([-400, -400.1, -400.2])


def test_curves_are_means_of_consecutive_episodes():
    assert vn_rl._binned([[1.0, 3.0, 5.0, 7.0]], bins=2) == [[2.0, 6.0]]


def test_each_policy_has_the_learning_rate_that_it_ends_best_at():
    ends = {("plain", 1.0): 50, ("plain", 3.0): 40, ("noisy", 1.0): 7, ("noisy", 3.0): 8}
    ends |= {("variance", 1.0): -3, ("variance", 3.0): -2}
    found = {key: returns(0, end) for key, end in ends.items()}
    assert vn_rl._best(found, last=5) == {"plain": 1.0, "noisy": 3.0, "variance": 3.0}


def test_a_best_rate_at_the_edge_is_noted():
    found = {("variance", lr): returns(0, 1) for lr in (1.0, 2.0, 3.0)}
    assert vn_rl._edges("Acrobot", found, {"variance": 2.0}) == []
    (note,) = vn_rl._edges("Acrobot", found, {"variance": 3.0})
    assert note == "Acrobot, variance network: the best learning rate is the largest tried, so others may be better"


def test_one_seed_shows_no_difference():
    check = vn_rl._above("a", [3.0], [1.0])
    assert not check.holds and check.gap == "not shown: one seed, which has no standard error (a)"


def test_one_seed_is_drawn_without_a_band():
    figure = pytest.importorskip("matplotlib.figure")
    for seeds, bands in (([[1.0, 2.0]], 0), ([[1.0, 2.0], [3.0, 2.0]], 1)):
        canvas = figure.Figure()
        curve = {"policy": "plain", "lr": 1e-3, "best": True, "seeds": seeds}
        vn_rl.draw({"episodes": 4, "curves": {"CartPole": [curve]}}, canvas)
        assert len(canvas.axes[0].collections) == bands
