"""freeze=True: exactly which parameters train."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.families import ALL, LAYERWISE, everywhere
from tests.networks import SmallNet

# Leaf names of what each family adds to the plain network.
ADDED = {
    "mean_field": {"raw_std"},
    "mean_field_biases": {"raw_std"},
    "k_tied": {"log_u", "log_v"},
    "vd_layer": {"raw_log_alpha"},
    "vd_neuron": {"raw_log_alpha"},
    "vd_weight": {"raw_log_alpha"},
    "rank1": {"output.loc", "output.raw_std", "input.loc", "input.raw_std"},
    "rank1_cauchy": {"output.loc", "output.raw_scale", "input.loc", "input.raw_scale"},
    "rank1_additive": {"output.loc", "output.raw_std", "input.loc", "input.raw_std"},
    "rank1_input": {"output.loc", "input.loc", "input.raw_std"},
    "rank1_lognormal": {"output.loc", "output.raw_scale", "input.loc", "input.raw_scale"},
    "rank1_halfcauchy": {"output.loc", "input.loc"},
    "rank1_signs": {"output.loc", "output.raw_std", "input.loc", "input.raw_std"},
    "batch_ensemble": {"output.loc", "input.loc"},
    "batch_ensemble_signs": {"output.loc", "input.loc"},
    "mc_dropout": set(),
    "drop_connect": set(),
    "emp": {"copies"},
    "emp_example": {"copies", "logits"},
    "ecmp": {"copies"},
    "variance_gaussian": {"signed_std"},
    "variance_bernoulli": {"signed_std"},
    "variance_uniform": {"signed_std"},
}


def leaf(name):
    return name.rpartition("posterior.")[2].rpartition("mixing.")[2]


@pytest.mark.parametrize("family", LAYERWISE)
def test_only_what_the_method_added_trains(family):
    plain = SmallNet()
    model = lb.bayesianize(copy.deepcopy(plain), LAYERWISE[family], where=everywhere, freeze=True)
    trained = {leaf(name) for name, p in model.named_parameters() if p.requires_grad}
    assert trained == ADDED[family]
    names = {leaf(name) for name, p in model.named_parameters() if not p.requires_grad}
    assert not names & ADDED[family]
    assert {leaf(n) for n, _ in model.named_parameters()} == names | trained


@pytest.mark.parametrize("family", [f for f in LAYERWISE if ADDED[f]])
def test_frozen_parameters_do_not_move(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), LAYERWISE[family], where=everywhere, freeze=True)
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(lb.param_groups(model, lr=0.1, weight_decay=0.1), lr=0.1)
    (model(torch.randn(4, 2, 4, 4)).square().sum() + lb.kl(model)).backward()
    optimiser.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert {leaf(name) for name in moved} <= ADDED[family]


def test_other_layers_are_frozen_too():
    model = lb.bayesianize(SmallNet(), lb.Rank1(), where=lb.named("output"), freeze=True)
    assert all(not p.requires_grad for name, p in model.named_parameters() if not name.startswith("output"))
    assert not model.output.bias.requires_grad


def test_biases_of_patches_are_patches():
    model = lb.bayesianize(SmallNet(), lb.EMP(), freeze=True)
    assert model.norm.weight.posterior.copies.requires_grad
    assert model.norm.bias.posterior.copies.requires_grad
    assert not model.conv.weight.requires_grad


def test_members_of_an_ensemble():
    model = lb.bayesianize(SmallNet(), lb.DeepEnsemble(members=2, of=lb.MeanField()), freeze=True)
    assert {leaf(name) for name, p in model.named_parameters() if p.requires_grad} == {"raw_std"}


def test_without_it_what_was_frozen_stays_so():
    plain = SmallNet()
    plain.conv.weight.requires_grad_(False)
    plain.norm.weight.requires_grad_(False)
    mean_field = lb.bayesianize(copy.deepcopy(plain), lb.MeanField())
    assert not mean_field.conv.weight.posterior.loc.requires_grad
    assert mean_field.conv.weight.posterior.raw_std.requires_grad
    assert mean_field.hidden.weight.posterior.loc.requires_grad
    # Copies are new parameters, whatever became of the one that they are centred on.
    assert lb.bayesianize(copy.deepcopy(plain), lb.EMP()).norm.weight.posterior.copies.requires_grad


@pytest.mark.parametrize("family", ALL)
def test_param_groups_hold_every_trained_parameter_once(family):
    model = lb.bayesianize(SmallNet(), ALL[family])
    model.conv.bias.requires_grad_(False) if hasattr(model, "conv") else None
    groups = lb.param_groups(model, lr=0.1, weight_decay=0.01, variational_lr=0.5)
    listed = [id(p) for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters() if p.requires_grad}
    torch.optim.AdamW(groups)


# Which leaf names decay: what no KL term contains.
DECAYS = {
    "mean_field": {"bias", "norm"},
    "mean_field_biases": {"norm"},
    "k_tied": {"bias", "norm"},
    "rank1": {"weight", "bias", "norm"},
    "rank1_input": {"weight", "bias", "norm"},
    "batch_ensemble": {"weight", "bias", "norm"},
    "mc_dropout": {"bias", "norm"},
    "variance_gaussian": {"bias", "norm"},
    "vd_layer": {"bias", "norm"},
}


@pytest.mark.parametrize("family", DECAYS)
def test_weight_decay_acts_on_what_no_kl_contains(family):
    model = lb.bayesianize(SmallNet(), LAYERWISE[family])
    names = {id(p): "norm" if n.startswith("norm") else leaf(n).split(".")[-1] for n, p in model.named_parameters()}
    for group in lb.param_groups(model, lr=0.1, weight_decay=0.01, variational_lr=0.5):
        found = {names[id(p)] for p in group["params"]}
        assert group["weight_decay"] == (0.01 if group["name"] == "points" else 0.0)
        assert group["lr"] == (0.5 if group["name"] == "variational" else 0.1)
        if group["name"] == "points":
            assert found == DECAYS[family]


def test_patches_do_not_decay_and_the_rest_does():
    model = lb.bayesianize(SmallNet(), lb.EMP(learn_mixing=True))
    points, variational = lb.param_groups(model, lr=0.1, weight_decay=0.01)
    assert {id(p) for p in points["params"]} == {
        id(p) for p in (model.conv.weight, model.conv.bias, model.hidden.weight, model.hidden.bias)
    }
    assert variational["name"] == "variational"
    assert (variational["lr"], variational["weight_decay"]) == (0.1, 0.0)
    plain = lb.param_groups(nn.Linear(2, 2), lr=0.1, weight_decay=0.3)
    assert [(g["name"], len(g["params"]), g["weight_decay"]) for g in plain] == [("points", 2, 0.3)]


@pytest.mark.parametrize(
    "options", [{"lr": -0.1}, {"lr": 0.1, "weight_decay": -1.0}, {"lr": float("nan")}, {"lr": "0.1"}]
)
def test_rates_that_would_climb_are_an_error(options):
    with pytest.raises(ValueError, match=r"param_groups\(.*=...\) takes a number from 0"):
        lb.param_groups(SmallNet(), **options)
