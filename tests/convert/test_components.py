"""One component index for the whole model, one per layer for EMP, and families side by side."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_folds
from tests.families import everywhere
from tests.networks import SmallNet, build

X = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("network", ["small", "lstm", "cells", "transformer", "gpt2", "bert"])
def test_all_layers_use_the_same_component_in_a_pass(network):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, lb.BatchEnsemble(components=4, init_spread=1.0))
    with torch.no_grad():
        members = [lb.point_estimate(model, component=k)(*inputs) for k in range(4)]
        used = set()
        for _ in range(20):
            drawn = model(*inputs)
            used.add(next(k for k, member in enumerate(members) if torch.allclose(drawn, member, atol=1e-4)))
    assert len(used) > 1


@pytest.mark.parametrize("method", [lb.Rank1(components=3), lb.BatchEnsemble(components=3, init_spread=0.5)])
def test_each_row_with_its_own_component(method):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), method).eval()
    components = [2, 0, 0, 1, 2]
    with torch.no_grad(), lb.sampling(component=torch.tensor(components), seed=0):
        mixed = model(X)
    if isinstance(method, lb.BatchEnsemble):
        for row, k in enumerate(components):
            with torch.no_grad(), lb.sampling(component=k):
                torch.testing.assert_close(mixed[row], model(X)[row], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="components were given per row, .* use tile=True"):
        with lb.sampling(component=torch.tensor(components), estimator="weight"):
            model(X)


@pytest.mark.parametrize("learn_mixing", [False, True])
def test_each_row_with_its_own_copy_of_a_patched_layer(learn_mixing):
    torch.manual_seed(0)
    method = lb.EMP(components=3, init_std=1.0, draw="example", learn_mixing=learn_mixing)
    model = lb.bayesianize(SmallNet(), method).eval()
    components = [2, 0, 0, 1, 2]
    with lb.sampling(component=torch.tensor(components)):
        mixed = model(X)
    for row, k in enumerate(components):
        with lb.sampling(component=k):
            torch.testing.assert_close(mixed[row], model(X)[row], rtol=1e-5, atol=1e-5)
    # A component that was given says nothing of how probable it is.
    mixed.square().sum().backward()
    logits = [parameter for name, parameter in model.named_parameters() if name.endswith("logits")]
    assert len(logits) > 0 if learn_mixing else not logits
    assert all(parameter.grad is None for parameter in logits)


@pytest.mark.parametrize("method", [lb.EMP(components=3), lb.ECMP(components=3)])
def test_components_of_rows_are_refused_where_rows_share_a_weight(method):
    model = lb.bayesianize(SmallNet(), method)
    with pytest.raises(ValueError, match="components were given per row, .* one weight is drawn for all rows"):
        with lb.sampling(component=torch.tensor([2, 0, 0, 1, 2])):
            model(X)


def test_emp_draws_one_copy_per_layer_for_weight_and_bias_together():
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), lb.EMP(components=3, init_std=1.0), where=lb.types(nn.Linear)).eval()
    model.output = nn.Identity()
    x = torch.randn(1, 2, 4, 4)
    expected = []
    for k in range(3):
        with torch.no_grad(), lb.sampling(component=k):
            expected.append(model(x))
    with torch.no_grad():
        used = {
            next(k for k in range(3) if torch.allclose(model_out, expected[k], atol=1e-5))
            for model_out in [model(x) for _ in range(30)]
        }
    assert used == {0, 1, 2}


def test_emp_layers_draw_independently():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = lb.bayesianize(model, lb.EMP(components=2, init_std=1.0), where=everywhere)
    x = torch.randn(1, 2)
    with torch.no_grad():
        outputs = {tuple(model(x)[0].tolist()) for _ in range(60)}
    assert len(outputs) == 4


def test_families_side_by_side():
    torch.manual_seed(0)
    plain = SmallNet()
    rules = {
        "conv": lb.Rank1(components=2),
        "norm": lb.EMP(components=3),
        "hidden": lb.KTied(),
        "output": lb.BatchEnsemble(components=2, init_spread=0.0),
    }
    model = lb.bayesianize(plain, rules).eval()
    assert_folds(model, X)
    assert model.conv.weight.posterior.group is model.output.weight.posterior.group
    with torch.no_grad(), lb.sampling(mean=True):
        torch.testing.assert_close(model(X), lb.point_estimate(model)(X), rtol=1e-5, atol=1e-5)
    parts = [layer.weight.kl() for layer in (model.conv, model.norm, model.hidden, model.output)]
    total = sum(parts) + model.norm.bias.kl() + sum(model.norm.mixing.kl_terms("mean", None))
    torch.testing.assert_close(lb.kl(model), total)


def test_a_component_for_all_means_the_patches_too():
    model = lb.bayesianize(SmallNet(), {"conv": lb.Rank1(components=2), "norm": lb.EMP(components=2, init_std=0.5)})
    model.eval()
    for k in range(2):
        point = lb.point_estimate(model, component=k)
        with torch.no_grad(), lb.sampling(mean=True, component=k):
            torch.testing.assert_close(model(X), point(X), rtol=1e-5, atol=1e-5)


def test_a_component_that_does_not_exist():
    model = lb.bayesianize(SmallNet(), lb.Rank1(components=2))
    with pytest.raises(ValueError, match="component=2 does not exist: the model has 2 components, 0 to 1"):
        with lb.sampling(component=2):
            model(X)
    with pytest.raises(ValueError, match="component=5 does not exist"):
        lb.point_estimate(model, component=5)
    with pytest.raises(ValueError, match="component counts from 0; -1 is negative"):
        lb.sampling(component=-1)
    with pytest.raises(ValueError, match="needs n to be a multiple of the 2 components of the model, not n=3"):
        with lb.sampling(n=3, component="all"):
            model(lb.fold(X, 3))


def test_two_parts_that_were_converted_apart_have_indices_of_their_own():
    torch.manual_seed(0)
    first = lb.bayesianize(nn.Linear(2, 2), lb.BatchEnsemble(components=2, init_spread=1.0))
    second = lb.bayesianize(nn.Linear(2, 2), lb.BatchEnsemble(components=2, init_spread=1.0))
    model = nn.Sequential(first, second)
    with torch.no_grad():
        assert len({tuple(model(torch.ones(1, 2))[0].tolist()) for _ in range(60)}) == 4
