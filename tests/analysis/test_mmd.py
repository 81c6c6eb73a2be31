"""The distance of a posterior from its zero-mean approximation, against Monte Carlo and the closed form."""

import json
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import MMDBound, mmd_bound
from leanbayes.testing import assert_mean_close


@pytest.mark.parametrize(("alpha", "weights"), [(2.0, 3), (10.0, 5), (200.0, 20)])
def test_distance_is_twice_the_total_variation(alpha, weights):
    torch.manual_seed(0)
    mean = torch.randn(weights, dtype=torch.float64)
    std = alpha**0.5 * mean.abs()
    q, zero = (torch.distributions.Normal(loc, std) for loc in (mean, torch.zeros_like(mean)))
    w = zero.sample((100_000,))
    ratio = (q.log_prob(w) - zero.log_prob(w)).sum(1).exp()
    exact = mmd_bound(alpha, weights).exact
    assert_mean_close((ratio - 1).abs(), torch.tensor(exact, dtype=torch.float64))


def test_bound_is_over_the_distance_and_meets_it_for_large_alpha():
    for alpha in (0.01, 1.0, 100.0):
        assert mmd_bound(alpha, 7).bound > mmd_bound(alpha, 7).exact
    far = mmd_bound(1e8, 7)
    assert far.bound == pytest.approx(math.sqrt(2 * 7 / (math.pi * 1e8)))
    assert far.exact == pytest.approx(far.bound, rel=1e-6)


def test_a_bound_of_two_says_nothing_and_says_so():
    # The first dense layer of the published LeNet-5.
    published = mmd_bound(math.exp(6.9), 400_000)
    assert published.vacuous and "vacuous" in str(published)
    assert not mmd_bound(1e6, 100).vacuous and "vacuous" not in str(mmd_bound(1e6, 100))


@pytest.mark.parametrize("share", ["layer", "neuron", "weight"])
def test_layers_of_a_model_equal_the_distance_of_their_moments(share):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    model = lb.bayesianize(net, lb.VariationalDropout(share=share, init_log_alpha=2))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.posterior.raw_log_alpha.add_(torch.randn_like(layer.weight.posterior.raw_log_alpha))
    found = mmd_bound(model)
    assert list(found) == ["0", "2"] and found["0"].weights == 72
    for name, bound in found.items():
        moments = model.get_submodule(name).weight.moments()
        squared = (moments.mean.square() / moments.var).double().sum().item()
        assert bound.exact == pytest.approx(2 * math.erf(math.sqrt(squared / 8)), rel=1e-5)


def test_a_variance_layer_is_its_own_approximation():
    (bound,) = mmd_bound(lb.bayesianize(nn.Linear(3, 2), lb.VarianceLayer())).values()
    assert (bound.bound, bound.exact, bound.vacuous) == (0, 0, False)
    assert json.loads(json.dumps(bound.to_dict(), allow_nan=False))["alpha"] is None


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="alpha is a number from 0, not -1"):
        mmd_bound(-1, 4)
    with pytest.raises(ValueError, match="at least one weight, not 0"):
        MMDBound(1.0, 0)
    with pytest.raises(TypeError, match="a model, or alpha and the number of weights"):
        mmd_bound(1.0)


def test_weights_at_their_means_are_as_far_from_zero_as_can_be():
    model = lb.bayesianize(nn.Linear(10, 20), lb.VariationalDropout(init_log_alpha=19))
    (bound,) = mmd_bound(lb.analysis.prune(model, sparsity=0.9, keep_means=True)).values()
    assert bound.vacuous and bound.exact == 2 and bound.to_dict()["bound"] is None
    assert "vacuous" in str(bound)


def test_a_layer_without_weights_has_nothing_to_drop():
    model = lb.bayesianize(nn.Linear(10, 20), lb.MeanField())
    (bound,) = mmd_bound(lb.analysis.prune(model, threshold=1e9)).values()
    assert bound.exact == bound.bound == 0 and not bound.vacuous
