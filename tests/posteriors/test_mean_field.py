"""Gaussian mean-field."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.posteriors import Dirac
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.testing import PosteriorSuite


class TestMeanField(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        posterior = MeanFieldPosterior(torch.randn(3, 2), 0.3)
        with torch.no_grad():
            posterior.raw_std += torch.randn(3, 2) / 2
        return posterior


class TestDirac(PosteriorSuite):
    draws = 50

    def make_posterior(self):
        return Dirac(torch.tensor([[1.0, -2.0]]))


@pytest.mark.parametrize("std", [1e-6, 0.01, 1.0, 30.0])
def test_starts_at_the_given_standard_deviation(std):
    posterior = MeanFieldPosterior(torch.zeros(2, 3), std)
    torch.testing.assert_close(posterior.std(), torch.full((2, 3), std), rtol=1e-5, atol=0)


def test_uses_the_given_parameter_itself():
    # An optimiser that holds the plain weight goes on training it.
    layer = nn.Linear(3, 2)
    weight = layer.weight
    assert lb.MeanField().build(weight, None).loc is weight


def test_large_raw_values_do_not_overflow():
    posterior = MeanFieldPosterior(torch.zeros(2), 1.0)
    nn.init.constant_(posterior.raw_std, 200.0)
    assert posterior.std().tolist() == [200.0, 200.0]


def test_log_alpha_is_the_log_of_the_ratio_of_variance_to_squared_mean():
    posterior = MeanFieldPosterior(torch.tensor([2.0, 0.0]), 0.5)
    log_alpha = posterior.log_alpha()
    assert log_alpha[0].item() == pytest.approx(math.log(0.25 / 4), rel=1e-5)
    assert log_alpha[1].isfinite()


def test_bias_is_a_point_unless_it_gets_the_same():
    bias = nn.Parameter(torch.ones(2))
    assert lb.MeanField().build_bias(bias) is None
    same = lb.MeanField(bias="same", init_std=0.2).build_bias(bias)
    torch.testing.assert_close(same.std(), torch.full((2,), 0.2))
