"""What is kept of each test example, and what pairs of methods are said to differ in."""

import numpy as np
import pytest
import torch

from leanbayes._prediction import Prediction
from leanbayes.compare.intervals import calibration, intervals, probability_transform
from leanbayes.compare.losses import CONFIDENCE, LOSSES, example_losses, paired_tests, read_losses, write_losses
from leanbayes.compare.measure import constant_guess, measure
from leanbayes.data._normalise import Affine
from leanbayes.metrics.functional import central_interval, coverage
from leanbayes.objectives import Categorical, Gaussian


@pytest.fixture
def classes():
    generator = torch.Generator().manual_seed(0)
    return Prediction(torch.randn(5, 50, 3, generator=generator), Categorical()), torch.arange(50) % 3


@pytest.fixture
def values():
    generator = torch.Generator().manual_seed(1)
    return Prediction(torch.randn(5, 60, 1, generator=generator), Gaussian(4.0)), torch.randn(60, generator=generator)


@pytest.mark.parametrize("scale", [None, Affine((4.0,), (3.0,)), Affine((4.0,), (0.3,), log=True)])
def test_the_metrics_are_the_means_of_the_losses(classes, values, scale):
    for (prediction, y), root in ((classes, ()), (values, ("rmse",))):
        expected = measure(prediction, y, scale)
        for name, losses in example_losses(prediction, y, scale).items():
            assert losses.shape == y.shape
            mean = float(losses.mean())
            assert (mean**0.5 if name in root else mean) == pytest.approx(expected[name], rel=1e-5)


def test_losses_are_kept_and_what_is_no_file_of_ours_is_absent(tmp_path, classes):
    losses = example_losses(*classes)
    write_losses(tmp_path, losses)
    again = read_losses(tmp_path)
    assert set(again) == set(losses) and all(torch.equal(again[name], losses[name]) for name in losses)
    (tmp_path / LOSSES).write_bytes(b"no archive")
    assert read_losses(tmp_path) == read_losses(tmp_path / "nowhere") == {}


def test_pairs_have_every_metric_that_all_seeds_have(tmp_path):
    generator = torch.Generator().manual_seed(0)
    hard = torch.rand(200, generator=generator, dtype=torch.float64)
    for method, extra in (("plain", 0.0), ("worse", 0.1), ("older", 0.0)):
        for seed in (0, 1):
            folder = tmp_path / method / f"seed{seed}"
            folder.mkdir(parents=True)
            noise = 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
            if method != "older" or seed == 0:
                write_losses(folder, {"nll": hard + extra + noise, CONFIDENCE: hard})
    (record,) = paired_tests(tmp_path, ["plain", "worse", "older"], (0, 1))
    assert (record["metric"], record["first"], record["second"]) == ("nll", "plain", "worse")
    assert record["difference"] == pytest.approx(-0.1, abs=4 * 0.1 * 200**-0.5) and record["z"] < -5


def test_a_constant_guess_knows_the_targets_alone():
    train, y = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
    found = constant_guess(train, y, 2)
    probs = np.array([3.5, 1.5]) / 5
    assert found["accuracy"] == 0.5 and found["nll"] == pytest.approx(-np.log(probs).mean(), rel=1e-5)
    real = constant_guess(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]), 0, Affine(std=(10.0,)))
    assert real["rmse"] == pytest.approx(10 * 2**0.5)
    # On a logarithmic scale, the squared error is that of the mean, and the density that of a log-normal.
    scale = Affine((2.0,), (0.5,), log=True)
    z = torch.tensor([-1.0, 1.0])
    logs = constant_guess(z, z, 0, scale)
    values = scale.inverse(z)
    assert logs["rmse"] == pytest.approx(float(values.std(correction=0)), rel=1e-6)
    expected = torch.distributions.LogNormal(2.0, 0.5).log_prob(values).mean()
    assert logs["lpd"] == pytest.approx(float(expected), rel=1e-5)
    normal = torch.distributions.Normal(20.0, 10.0)
    assert real["lpd"] == pytest.approx(float(normal.log_prob(torch.tensor([20.0, 40.0])).mean()), rel=1e-5)


def test_coverage_by_level_is_that_of_the_intervals(values):
    prediction, y = values
    found = calibration(prediction, y)
    for level, share in zip(found["level"], found["coverage"]):
        lower, upper = central_interval(prediction, level)
        assert share == pytest.approx(float(coverage(lower.squeeze(-1), upper.squeeze(-1), y)))
    assert sum(found["pit"]) == len(y)


def test_targets_of_the_predicted_distribution_are_uniform_in_it():
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(4, 2000, 1, generator=generator)
    drawn = means[torch.randint(4, (2000,), generator=generator), torch.arange(2000), 0]
    y = drawn + 0.5 * torch.randn(2000, generator=generator)
    u = probability_transform(Prediction(means, Gaussian(4.0)), y)
    assert float(u.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / 2000) ** 0.5)
    assert float(u.var()) == pytest.approx(1 / 12, abs=4 * (1 / 180 / 2000) ** 0.5)


def test_intervals_are_shown_in_order_and_in_the_units_of_the_data(values):
    prediction, y = values
    shown = intervals(prediction, y, 0.95, Affine((100.0,), (10.0,)))
    assert len(shown["mean"]) == 40 and shown["mean"] == sorted(shown["mean"])
    assert all(low < middle < high for low, middle, high in zip(shown["lower"], shown["mean"], shown["upper"]))
    assert set(np.round(shown["target"], 3)) <= set(np.round(100 + 10 * y.double().numpy(), 3))
