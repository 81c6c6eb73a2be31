"""Variance layers."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.variance import VariancePosterior
from leanbayes.testing import PosteriorSuite


class VarianceSuite(PosteriorSuite):
    kind = "gaussian"
    point_is_mean = False

    def make_posterior(self):
        torch.manual_seed(1)
        return VariancePosterior(torch.randn(3, 2), self.kind)


class TestGaussian(VarianceSuite):
    pass


class TestBernoulli(VarianceSuite):
    kind = "bernoulli"


class TestUniform(VarianceSuite):
    kind = "uniform"


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "uniform"])
def test_standard_deviation_is_the_absolute_weight_after_loading(kind):
    posterior = VariancePosterior(torch.zeros(3), kind)
    posterior.set_point_(torch.tensor([-1.0, 0.0, 2.0]))
    assert posterior.std().tolist() == [1.0, 0.0, 2.0]


def test_bernoulli_draws_are_signs_and_uniform_draws_are_bounded():
    value = torch.tensor([0.5, 2.0])
    signs = VariancePosterior(value, "bernoulli").rsample(100, Sampling(n=100))
    torch.testing.assert_close(signs.abs(), value.expand(100, 2))
    bounded = VariancePosterior(value, "uniform").rsample(2000, Sampling(n=2000)) / value
    assert bounded.abs().max() <= 3**0.5 and bounded.abs().max() > 1.7


def test_divergence_is_zero():
    assert kl_divergence(VariancePosterior(torch.ones(3), "gaussian"), lb.LogUniform()).item() == 0


def test_moment_matching_is_not_chosen_unasked():
    layers = {kind: lb.bayesianize(nn.Linear(3, 2), lb.VarianceLayer(kind)) for kind in ("gaussian", "uniform")}
    assert layers["gaussian"].estimator == "local"
    assert layers["uniform"].estimator == "flipout"
    assert lb.nn.BayesianLayer(nn.Linear(3, 2), lb.VarianceLayer("uniform", estimator="local")).estimator == "local"


def test_mean_output_is_the_bias():
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.VarianceLayer())
    with lb.sampling(mean=True):
        torch.testing.assert_close(layer(torch.randn(4, 3)), layer.bias.expand(4, 2), rtol=0, atol=0)
