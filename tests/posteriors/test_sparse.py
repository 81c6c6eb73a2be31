"""The sparse posterior: the checks of every posterior, and its entries against the dense one."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.ops import op_for
from leanbayes.posteriors.sparse import sparse_copy
from leanbayes.testing import PosteriorSuite
from tests.families import EXACT, OTHER

INDEX = torch.tensor([1, 2, 5, 11])
FAMILIES = {name: (EXACT | OTHER)[name] for name in ("mean_field", "k_tied", "vd_layer", "vd_neuron", "vd_weight")}
FAMILIES |= {name: OTHER[name] for name in ("variance_gaussian", "variance_bernoulli", "variance_uniform")}


def dense(method):
    torch.manual_seed(1)
    layer = nn.Linear(4, 3)
    posterior = method.build(nn.Parameter(torch.randn(3, 4)), op_for(layer))
    with torch.no_grad():
        for name, parameter in posterior.named_parameters():
            if name not in ("loc", "signed_std"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return posterior


class SparseSuite(PosteriorSuite):
    method = lb.VarianceLayer()
    point_is_mean = False

    def make_posterior(self):
        return sparse_copy(dense(self.method), INDEX)


class TestOfVariances(SparseSuite):
    pass


class TestOfMeanField(SparseSuite):
    method = lb.MeanField(init_std=0.3)


class TestBesidePoints(SparseSuite):
    def make_posterior(self):
        return sparse_copy(dense(lb.MeanField(init_std=0.3)), INDEX, keep_means=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_entries_that_are_left_keep_their_moments_and_the_others_are_zero(name):
    before = dense(FAMILIES[name])
    after = sparse_copy(before, INDEX)
    mask = torch.zeros(12).index_fill(0, INDEX, 1).view(3, 4)
    torch.testing.assert_close(after.mean(), before.mean() * mask)
    torch.testing.assert_close(after.std(), before.std() * mask)
    torch.testing.assert_close(after.moments().var, before.moments().var * mask)
    kept = sum(p.numel() for p in after.parameters())
    assert kept == {"vd_layer": 5, "mean_field": 8, "k_tied": 8, "vd_neuron": 8, "vd_weight": 8}.get(name, 4)


@pytest.mark.parametrize("name", FAMILIES)
def test_means_may_stay_where_the_noise_goes(name):
    before = dense(FAMILIES[name])
    after = sparse_copy(before, INDEX, keep_means=True)
    mask = torch.zeros(12).index_fill(0, INDEX, 1).view(3, 4)
    torch.testing.assert_close(after.mean(), before.mean())
    torch.testing.assert_close(after.std(), before.std() * mask)
    draws = after.rsample(3, Sampling(n=3))
    torch.testing.assert_close(draws[:, mask == 0], before.mean()[mask == 0].expand(3, 8))


def test_nothing_left_and_everything_left():
    before = dense(lb.VarianceLayer())
    assert not sparse_copy(before, INDEX[:0]).std().any()
    torch.testing.assert_close(sparse_copy(before, torch.arange(12)).std(), before.std())
