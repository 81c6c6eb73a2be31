"""Feature scales."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import EstimatorSuite


class TestDense(EstimatorSuite):
    estimator = "rank1"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.Rank1(components=3, init_std=0.2, init_spread=0.3))

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestAdditiveTransposedConvolution(EstimatorSuite):
    estimator = "rank1"

    def make_layer(self):
        method = lb.Rank1(components=2, init_std=0.2, form="additive", init_spread=0.3)
        return lb.nn.BayesianLayer(nn.ConvTranspose1d(4, 4, 2, groups=2), method)

    def make_input(self, rows):
        return torch.randn(rows, 4, 2)


class TestDropout(EstimatorSuite):
    estimator = "rank1"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MCDropout(p=0.3))

    def make_input(self, rows):
        return torch.randn(rows, 2, 4)


class TestCauchy(EstimatorSuite):
    estimator = "rank1"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.Rank1(components=2, posterior="cauchy", init_std=0.2))

    def make_input(self, rows):
        return torch.randn(rows, 4)


def test_rows_of_one_sample_share_the_component_but_not_the_draw():
    torch.manual_seed(0)
    layer = lb.nn.BayesianLayer(nn.Linear(30, 5, bias=False), lb.Rank1(2, init_std=1e-4, random_sign=0.5))
    x = torch.randn(1, 30).expand(8, 30)
    with lb.sampling(n=2, component="all"), torch.no_grad():
        y = layer(x)
    means = torch.stack([x[0] @ layer.weight.mean(k).T for k in (0, 1)])
    torch.testing.assert_close(y, means.repeat_interleave(4, 0), rtol=0, atol=0.01)
    assert y[:4].unique(dim=0).shape[0] == 4


def test_batch_ensemble_equals_its_members():
    layer = lb.nn.BayesianLayer(nn.Conv2d(3, 4, 3), lb.BatchEnsemble(3, random_sign=0.5))
    x = torch.randn(2, 3, 5, 5)
    with lb.sampling(n=3, component="all"), torch.no_grad():
        y = lb.split(layer(lb.fold(x, 3)), 3)
    for k in range(3):
        plain = nn.functional.conv2d(x, layer.weight.mean(k), layer.bias)
        torch.testing.assert_close(y[k], plain, rtol=1e-4, atol=1e-5)
