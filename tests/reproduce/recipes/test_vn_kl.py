"""The curves of vn-kl against what is known of them."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.reproduce import Run
from leanbayes.reproduce.recipes import vn_kl


@pytest.mark.parametrize("log_alpha", [-8.0, 0.0, 3.0])
def test_ard_is_half_a_logarithm(log_alpha):
    assert vn_kl._divergence(lb.ARD(), log_alpha) == pytest.approx(0.5 * math.log1p(math.exp(-log_alpha)), rel=1e-5)


def test_samples_of_the_density_lie_above_the_curve_by_the_limit(tmp_path):
    run = Run("vn-kl", "smoke", {"draws": 20_000}, (0,), tmp_path)
    grid = [-6.0, 0.0, 6.0]
    values, errors = vn_kl._sampled(run, grid, 0.1, 0)
    exact = [vn_kl._divergence(lb.LogUniform(exact=True), log_alpha) for log_alpha in grid]
    for value, error, known in zip(values, errors, exact):
        assert abs(value - known - lb.StudentT(1e-16).limit()) < 4.5 * error


def test_a_curve_of_another_prior_is_not_taken_for_it():
    grid = torch.linspace(-10, 10, 21).tolist()
    exact = [vn_kl._divergence(lb.LogUniform(exact=True), log_alpha) for log_alpha in grid]
    ard = [vn_kl._divergence(lb.ARD(), log_alpha) for log_alpha in grid]
    shifted = [value + 35.0 for value in exact]
    assert max(map(abs, vn_kl._off_constant(shifted, exact))) < 1e-5
    assert max(map(abs, vn_kl._off_constant(ard, exact))) > 0.1


def test_a_rise_is_seen():
    assert vn_kl._decreases("a", [3.0, 2.0, 1.0]).holds
    check = vn_kl._decreases("a", [3.0, 2.0, 2.0, 2.5])
    assert not check.holds and check.gap == "it rises in 2 places"
