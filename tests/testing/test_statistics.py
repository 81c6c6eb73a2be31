"""The statistical assertions hold for what is right and fail for what is not."""

import pytest
import torch

from leanbayes.testing import (
    assert_close,
    assert_mean_close,
    assert_probability_close,
    assert_same_moments,
    assert_same_quantiles,
    assert_variance_close,
)


def test_right_values_pass_and_wrong_ones_fail():
    draws = 2 + 3 * torch.randn(10_000, 4)
    assert_mean_close(draws, 2.0)
    assert_variance_close(draws, 9.0)
    with pytest.raises(AssertionError, match="mean: element"):
        assert_mean_close(draws, 2.2)
    with pytest.raises(AssertionError, match="variance: element"):
        assert_variance_close(draws, 3.0)
    with pytest.raises(AssertionError):
        assert_mean_close(draws, torch.tensor([2.0, 2.0, 2.0, 2.3]))


def test_two_sets_of_draws():
    first, second = torch.randn(5000, 3), torch.randn(8000, 3)
    assert_same_moments(first, second)
    assert_same_quantiles(first, second)
    with pytest.raises(AssertionError, match="mean of"):
        assert_same_moments(first, second + 0.2)
    with pytest.raises(AssertionError, match="variance of"):
        assert_same_moments(first, 1.2 * second)
    with pytest.raises(AssertionError, match="under quantile"):
        assert_same_quantiles(first, 1.2 * second)


def test_quantiles_serve_heavy_tails():
    cauchy = torch.distributions.Cauchy(0.0, 1.0)
    first, second = cauchy.sample((5000, 2)), cauchy.sample((5000, 2))
    assert_same_quantiles(first, second)
    with pytest.raises(AssertionError):
        assert_same_quantiles(first, second + 0.3)


def test_equal_points_have_equal_quantiles():
    points = torch.tensor([1.0, 2.0])[torch.randint(0, 2, (4000,))][:, None]
    other = torch.tensor([1.0, 2.0])[torch.randint(0, 2, (3000,))][:, None] + 1e-7
    assert_same_quantiles(points, other)


def test_probabilities():
    assert_probability_close(torch.rand(10_000) < 0.3, 0.3)
    with pytest.raises(AssertionError):
        assert_probability_close(torch.rand(10_000) < 0.3, 0.33)
    with pytest.raises(AssertionError):
        assert_probability_close(torch.ones(10).bool(), 0.0)


def test_signs_have_a_variance_without_sampling_error_to_first_order():
    signs = torch.where(torch.rand(5000, 50) < 0.5, -1.0, 1.0)
    assert_variance_close(signs, 1.0)


def test_nan_fails():
    bad = torch.tensor([[1.0], [float("nan")]])
    for check in (assert_mean_close, assert_variance_close):
        with pytest.raises(AssertionError):
            check(bad, 1.0)
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([float("nan")]), torch.tensor([1.0]))


def test_close_is_relative_to_the_largest_value():
    assert_close(torch.tensor([1e6, 1.0]), torch.tensor([1e6 + 1, 0.0]))
    with pytest.raises(AssertionError, match="values: off by"):
        assert_close(torch.tensor([1.0]), torch.tensor([1.001]))
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.zeros(2), torch.zeros(2, 1))
    assert_close(torch.zeros(0), torch.zeros(0))
