"""Flipout."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes import noise
from leanbayes._sampling import Sampling, using
from leanbayes.testing import EstimatorSuite, sample_streams


class TestDense(EstimatorSuite):
    estimator = "flipout"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, bias="same"))

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestGroupedConvolution(EstimatorSuite):
    estimator = "flipout"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Conv1d(4, 4, 2, groups=2), lb.KTied(init_std=0.3))

    def make_input(self, rows):
        return torch.randn(rows, 4, 3)


class TestSigns(EstimatorSuite):
    estimator = "flipout"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.VarianceLayer("bernoulli"))

    def make_input(self, rows):
        return torch.randn(rows, 4)


def test_every_row_sees_the_perturbation_with_signs_of_its_own():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, estimator="flipout"))
    x = torch.randn(6, 4)
    with torch.no_grad():
        with using(Sampling(n=2, streams=sample_streams(2))):
            y = layer(x)
        again = Sampling(n=2, streams=sample_streams(2))
        s_in, s_out = noise.signs((6, 4), x, again), noise.signs((6, 3), x, again)
        deviation = layer.weight.deviation(2, again)
    for row in range(6):
        weight = layer.weight.mean() + deviation[row // 3] * torch.outer(s_out[row], s_in[row])
        torch.testing.assert_close(y[row], weight @ x[row] + layer.bias)


def test_examples_are_decorrelated():
    layer = lb.nn.BayesianLayer(nn.Linear(20, 1, bias=False), lb.MeanField(init_std=0.3, estimator="flipout"))
    x = torch.ones(2, 20)
    with torch.no_grad():
        y = torch.stack([layer(x) for _ in range(3000)])[..., 0] - layer.weight.mean().sum()
    correlation = (y[:, 0] * y[:, 1]).mean() / y.square().mean()
    assert abs(correlation) < 5 / 3000**0.5


def test_signs_are_the_same_at_all_positions_of_an_example():
    layer = lb.nn.BayesianLayer(nn.Conv1d(4, 3, 1), lb.MeanField(init_std=0.3, estimator="flipout"))
    y = layer(torch.randn(2, 4, 1).expand(2, 4, 6))
    torch.testing.assert_close(y, y[..., :1].expand_as(y))
