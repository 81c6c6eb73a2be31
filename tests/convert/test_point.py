"""point_estimate: plain models at the means, at one component, or at one draw."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.families import ALL, LAYERWISE, everywhere
from tests.networks import NETWORKS, SmallNet, build

X = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ALL)
def test_the_model_stays_as_it_is(family):
    model = lb.bayesianize(SmallNet(), ALL[family])
    modules = [id(m) for m in model.modules()]
    state = copy.deepcopy(model.state_dict())
    point = lb.point_estimate(model, component=0)
    assert [id(m) for m in model.modules()] == modules
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    point.conv.weight.data.zero_()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", ALL)
def test_it_is_plain_in_every_way(family):
    plain = SmallNet()
    point = lb.point_estimate(lb.bayesianize(copy.deepcopy(plain), ALL[family]), seed=0)
    assert repr(point) == repr(plain)
    assert [set(vars(a)) for a in point.modules()] == [set(vars(b)) for b in plain.modules()]
    plain.load_state_dict(point.state_dict())
    torch.testing.assert_close(plain(X), point(X))
    point(X).sum().backward()
    assert all(p.grad is not None for p in point.parameters())


@pytest.mark.parametrize("family", ALL)
def test_draws_repeat_by_seed_and_leave_torchs_generator_alone(family):
    model = lb.bayesianize(SmallNet(), ALL[family])
    state = torch.random.get_rng_state()
    first, again = lb.point_estimate(model, seed=1), lb.point_estimate(model, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters()))


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in ("batch_ensemble", "batch_ensemble_signs")])
def test_draws_differ_between_seeds_and_from_the_mean(family):
    model = lb.bayesianize(SmallNet(), LAYERWISE[family])
    points = [lb.point_estimate(model, seed=s).output.weight for s in range(3)]
    points.append(lb.point_estimate(model, component=0).output.weight)
    differ = [not torch.equal(a, b) for i, a in enumerate(points) for b in points[:i]]
    assert sum(differ) >= len(differ) - 3  # of few copies, two draws may take the same


def test_a_draw_of_a_given_component():
    model = lb.bayesianize(SmallNet(), lb.BatchEnsemble(components=3, init_spread=0.5))
    for k in range(3):
        drawn, mean = lb.point_estimate(model, component=k, seed=5), lb.point_estimate(model, component=k)
        torch.testing.assert_close(dict(drawn.state_dict()), dict(mean.state_dict()))


def test_draws_have_the_posteriors_spread():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Linear(30, 30), lb.MeanField(init_std=0.2))
    deviation = lb.point_estimate(model, seed=0).weight - lb.point_estimate(model).weight
    assert abs(deviation.std() - 0.2) < 5 * 0.2 / (2 * 900) ** 0.5


@pytest.mark.parametrize("training", [True, False])
def test_modes_and_frozen_parameters_come_back(training):
    plain = SmallNet().train(training)
    plain.conv.weight.requires_grad_(False)
    plain.hidden.bias.requires_grad_(False)
    point = lb.point_estimate(lb.bayesianize(copy.deepcopy(plain), lb.DropConnect()))
    assert all(m.training is training for m in point.modules())
    assert [(n, p.requires_grad) for n, p in point.named_parameters()] == [
        (n, p.requires_grad) for n, p in plain.named_parameters()
    ]


@pytest.mark.parametrize("network", NETWORKS)
def test_trained_means_are_what_comes_back(network):
    """Not the weights at conversion: those of now, in the dtype of now."""
    plain, inputs = build(network)
    model = lb.bayesianize(plain, lb.MeanField(), where=everywhere)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.double()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    point = lb.point_estimate(model)
    assert all(p.dtype == torch.float64 for p in point.parameters())
    with torch.no_grad(), lb.sampling(mean=True):
        torch.testing.assert_close(point(*inputs), model(*inputs), rtol=1e-9, atol=1e-9)


def test_running_statistics_come_back():
    model = lb.bayesianize(SmallNet(), lb.EMP()).train()
    model(X)
    point = lb.point_estimate(model)
    assert torch.equal(point.norm.running_mean, model.norm.core.running_mean)
    assert point.norm.num_batches_tracked == 1
    point.norm.running_mean.zero_()
    assert model.norm.core.running_mean.abs().sum() > 0


def test_it_can_be_converted_again():
    model = lb.bayesianize(SmallNet(), lb.MeanField())
    again = lb.bayesianize(lb.point_estimate(model), lb.Rank1())
    assert again(X).shape == (3, 3)


@pytest.mark.parametrize("of", [None, lb.MeanField()], ids=["plain", "random"])
def test_an_ensemble_within_a_model_becomes_one_member(of):
    torch.manual_seed(0)
    part = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), lb.DeepEnsemble(2, of=of))
    model, x = nn.Sequential(part, nn.ReLU()), torch.randn(5, 4)
    with pytest.raises(ValueError, match="members of the ensemble differ; choose one with component="):
        lb.point_estimate(model)
    plain = lb.point_estimate(model, component=1)
    assert list(plain.state_dict()) == ["0.0.weight", "0.0.bias"]
    with lb.sampling(mean=True, component=1):
        torch.testing.assert_close(plain(x), model(x))


@pytest.mark.parametrize("family", ["emp", "ecmp", "rank1", "batch_ensemble"])
@pytest.mark.parametrize("wrong", [3, -1])
def test_components_that_do_not_exist_are_an_error(family, wrong):
    model = lb.bayesianize(SmallNet(), ALL[family])
    with pytest.raises(ValueError, match=f"component={wrong} does not exist"):
        lb.point_estimate(model, component=wrong)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"component": "all"}, TypeError, "component is the number of one"),
        ({"component": True}, TypeError, "component is the number of one"),
        ({"seed": "0"}, ValueError, "seed takes a whole number"),
    ],
)
def test_bad_arguments_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        lb.point_estimate(lb.bayesianize(SmallNet(), lb.Rank1()), **arguments)
    with pytest.raises(TypeError, match="takes an nn.Module, not int"):
        lb.point_estimate(3)
