"""RMSE, coverage and width against scikit-learn, scipy and by hand."""

import math

import pytest
import torch
from scipy import stats
from sklearn.metrics import root_mean_squared_error

import leanbayes as lb
from leanbayes.metrics.functional import central_interval, coverage, interval_width, rmse


def test_rmse_is_scikit_learns():
    predicted, targets = torch.randn(50), torch.randn(50)
    assert rmse(predicted, targets).item() == pytest.approx(root_mean_squared_error(targets, predicted), rel=1e-6)


def test_a_column_fits_a_row_of_targets_without_broadcasting():
    predicted, targets = torch.randn(50), torch.randn(50)
    expected = rmse(predicted, targets)
    assert torch.equal(rmse(predicted[:, None], targets), expected)
    assert torch.equal(rmse(predicted, targets[:, None]), expected)


def test_several_targets_per_example_count_alike():
    predicted, targets = torch.randn(20, 3), torch.randn(20, 3)
    torch.testing.assert_close(rmse(predicted, targets), rmse(predicted.flatten(), targets.flatten()))


def test_rmse_of_a_prediction_is_that_of_its_mean():
    outputs, targets = torch.randn(5, 20, 1), torch.randn(20)
    torch.testing.assert_close(rmse(lb.Prediction(outputs, lb.Gaussian(1.0)), targets), rmse(outputs.mean(0), targets))


def test_one_example():
    assert rmse(torch.tensor([3.0]), torch.tensor([1.0])).item() == 2


def test_central_interval_by_scipy():
    lower, upper = central_interval(lb.Prediction(torch.full((3, 2, 1), 1.5), lb.Gaussian(4.0)), 0.8)
    low, high = stats.norm(1.5, 0.5).interval(0.8)
    torch.testing.assert_close(lower, torch.full((2, 1), low, dtype=torch.float32))
    torch.testing.assert_close(upper, torch.full((2, 1), high, dtype=torch.float32))


def test_coverage_of_the_true_distribution_is_its_level():
    n, level = 20_000, 0.9
    targets = torch.randn(n)
    prediction = lb.Prediction(torch.zeros(1, n, 1), lb.Gaussian(1.0))
    found = coverage(*central_interval(prediction, level), targets).item()
    assert found == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / n))


def test_ends_are_covered():
    lower, upper = torch.zeros(4), torch.ones(4)
    assert coverage(lower, upper, torch.tensor([0.0, 1.0, -1e-6, 1.0 + 1e-6])).item() == 0.5
    assert coverage(lower[:, None], upper[:, None], torch.tensor([0.0, 0.5, 2.0, 3.0])).item() == 0.5
    assert interval_width(lower, upper * torch.arange(4)).item() == 1.5


def test_a_point_and_the_whole_line_are_intervals():
    point = torch.tensor([1.0])
    assert coverage(point, point, point).item() == 1
    assert interval_width(point, point).item() == 0
    assert interval_width(-point / 0, point / 0).item() == math.inf


def test_bad_input():
    with pytest.raises(ValueError, match="do not fit targets"):
        rmse(torch.zeros(4), torch.zeros(3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        rmse(torch.zeros(2), torch.tensor([0.0, math.nan]))
    with pytest.raises(ValueError, match="above their upper end"):
        coverage(torch.ones(2), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="do not fit upper ends"):
        interval_width(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="level is a number between 0 and 1, not 95"):
        central_interval(lb.Prediction(torch.zeros(2, 2, 1), lb.Gaussian(1.0)), 95)
    with pytest.raises(ValueError, match="for real targets"):
        central_interval(lb.Prediction(torch.zeros(2, 2, 3), lb.Categorical()))
