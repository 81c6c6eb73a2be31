"""Several policies in one pass, each with the weights that the gradient will have."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.rl.actors import Actors, checked_policy
from leanbayes.rl.draws import one_draw_each
from tests.rl.small import KINDS, small_policy

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def rows(n):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@each_kind
def test_actors_have_the_weights_of_the_draw(kind):
    policies, x = [small_policy(kind, seed) for seed in range(3)], rows(3)
    actors = Actors(policies[0], 3)
    seeds = [7, 7, 9]
    for index, (network, seed) in enumerate(zip(policies, seeds)):
        actors.draw_(index, network, seed)
    outputs = actors(x)
    for index, (network, seed) in enumerate(zip(policies, seeds)):
        with one_draw_each([seed]):
            torch.testing.assert_close(outputs[index], network(x[index : index + 1])[0])


def test_actors_keep_what_they_were_given():
    network, x = small_policy("variance"), rows(2)
    actors = Actors(network, 2)
    actors.draw_(0, network, 1)
    actors.draw_(1, network, 1)
    before = actors(x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    actors.draw_(1, network, 2)
    after = actors(x)
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_a_network_without_biases_acts():
    network = lb.bayesianize(nn.Sequential(nn.Linear(4, 3, bias=False)), lb.MeanField())
    actors = Actors(network, 1)
    actors.draw_(0, network, 5)
    with one_draw_each([5]):
        torch.testing.assert_close(actors(torch.ones(1, 4)), network(torch.ones(1, 4)))


@pytest.mark.parametrize("network", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))])
def test_other_networks_are_refused(network):
    with pytest.raises(TypeError, match="nn.Sequential of dense layers and activations.*not (Linear|Sequential)$"):
        checked_policy(network, 4, 2)


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.ReLU()), small_policy("variance"), nn.Sequential(nn.Linear(3, 2))]
)
def test_networks_that_do_not_fit_are_refused(network):
    with pytest.raises(ValueError, match=r"4 features and 2 actions.*make_policy\(kind, 4, 2\)$"):
        checked_policy(network, 4, 2)
