"""Normal priors and their mixtures."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.priors import CenteredNormal
from leanbayes.testing import PriorSuite

BAD_STD = ({"std": 0.0}, {"std": -0.1}, {"std": math.nan}, {"std": math.inf}, {"std": "1"}, {"std": True})


class TestNormal(PriorSuite):
    bad_arguments = (*BAD_STD, {"mean": math.nan}, {"mean": None})

    def make_prior(self):
        return lb.Normal(0.3, 0.2)


class TestHeNormal(PriorSuite):
    def make_prior(self):
        return lb.HeNormal()


class TestPretrained(PriorSuite):
    bad_arguments = BAD_STD

    def make_prior(self):
        return lb.Pretrained(0.5)


class TestScaleMixture(PriorSuite):
    bad_arguments = (*BAD_STD, {"narrow_std": 0.0}, {"weight": 0.0}, {"weight": 1.0}, {"weight": "half"})

    def make_prior(self):
        return lb.ScaleMixture(0.25, 1.0, 0.05)


def test_densities_equal_those_of_torch():
    value = torch.randn(50, dtype=torch.float64)
    normal = torch.distributions.Normal(*torch.tensor([0.3, 0.2], dtype=torch.float64))
    torch.testing.assert_close(lb.Normal(0.3, 0.2).log_prob(value), normal.log_prob(value))
    parts = torch.distributions.Normal(torch.zeros(2).double(), torch.tensor([1.0, 0.05], dtype=torch.float64))
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.25, 0.75], dtype=torch.float64)), parts
    )
    torch.testing.assert_close(lb.ScaleMixture(0.25, 1.0, 0.05).log_prob(value), mixture.log_prob(value))


def test_he_normal_follows_the_fan_in():
    assert lb.HeNormal().bind(torch.zeros(3, 8), 8) == lb.Normal(0.0, 0.5)


@pytest.mark.parametrize(
    ("module", "fan"),
    [
        (torch.nn.Linear(6, 3), 6),
        (torch.nn.Conv2d(4, 8, 3, groups=2), 2 * 9),
        (torch.nn.ConvTranspose2d(4, 8, 3, groups=2), 2 * 9),
    ],
    ids=str,
)
def test_he_normal_of_a_layer(module, fan):
    layer = lb.nn.BayesianLayer(module, lb.MeanField(prior=lb.HeNormal(), bias="same"))
    expected = lb.Normal(0.0, math.sqrt(2 / fan))
    assert layer.weight.prior == expected and layer.bias.prior == expected


def test_pretrained_is_centred_on_a_copy_that_moves_and_is_saved():
    value = torch.nn.Parameter(torch.ones(2))
    prior = lb.Pretrained(0.5).bind(value, 1)
    assert isinstance(prior, CenteredNormal)
    with torch.no_grad():
        value += 1
    assert prior.mean.tolist() == [1.0, 1.0] and not prior.mean.requires_grad
    assert list(prior.state_dict()) == ["mean"]
    assert prior.double().mean.dtype == torch.float64


def test_scale_mixture_keeps_its_gradient_far_out():
    # Summing densities before the logarithm would lose it.
    value = torch.tensor([60.0], requires_grad=True)
    lb.ScaleMixture(0.5, 1.0, 0.1).log_prob(value).backward()
    assert value.grad.item() == pytest.approx(-60.0)
