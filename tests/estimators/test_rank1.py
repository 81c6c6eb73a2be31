"""Feature scales."""

import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import leanbayes as lb
from leanbayes._sampling import Assigned, Sampling, using
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


def ensemble(components=3):
    torch.manual_seed(0)
    method = lb.BatchEnsemble(components, random_sign=0.5)
    return lb.bayesianize(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), method).double()


def member_by_member(model, x, order):
    """Outputs and gradients of the ensemble by one plain network after the other."""
    outputs = []
    for k in order:
        h = x
        for layer in model:
            if isinstance(layer, nn.Tanh):
                h = layer(h)
                continue
            p = layer.weight.posterior
            h = (h * p.input.loc[k]) @ p.weight.T * p.output.loc[k] + layer.bias
        outputs.append(h)
    return torch.cat(outputs)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2), (2, 0), (0, 1, 2, 0, 1, 2)])
def test_points_of_many_vectors_are_what_members_give_one_by_one(order, large, monkeypatch):
    monkeypatch.setattr(sys.modules["leanbayes.estimators.rank1"], "_SMALL", 0 if large else 2**18)
    model, x, weights = ensemble(), torch.randn(7, 6).double(), torch.randn(7 * len(order), 2).double()
    group = model[0].weight.posterior.group
    start = {(0, 1, 2): 0, (1, 2): 4, (0, 1, 2, 0, 1, 2): 0}.get(order)
    chosen = Assigned(order, cycle=None if start is None else (start, 1))
    found = []
    for run in (
        lambda: member_by_member(model, x, order),
        lambda: using_components(model, lb.fold(x, len(order)), len(order), {id(group.identity): chosen}),
    ):
        y = run()
        found.append([y, *torch.autograd.grad((y * weights).sum(), list(model.parameters()))])
    for ours, truth in zip(*reversed(found)):
        torch.testing.assert_close(ours, truth)


def using_components(model, x, n, assigned):
    with using(Sampling(n=n, assigned=assigned)):
        return model(x)


def test_points_of_all_members_are_neither_gathered_nor_repeated():
    """For a dense layer, scales repeated for each row are as large as its input."""
    model = ensemble(3)
    rows = 3 * 50
    with Sizes() as seen, lb.sampling(n=3, component="all"):
        model(torch.randn(rows, 6).double()).sum().backward()
    # The widest thing that a row has are its inputs.
    assert max(seen.sizes) == rows * 6
    assert not seen.names & {"aten.index_select.default", "aten.index.Tensor", "aten.repeat_interleave.self_int"}


class Sizes(TorchDispatchMode):
    """Which functions of torch run, and how large what they give is."""

    def __init__(self):
        super().__init__()
        self.names, self.sizes = set(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        self.sizes |= {each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor)}
        return result
