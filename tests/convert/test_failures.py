"""A conversion that fails says why in one sentence and leaves the model as it was."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.nn._base import _HOOKS
from tests.networks import SmallNet


class Net(SmallNet):
    """A network with hooks, a tied weight, a frozen parameter and one module in eval mode."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 6)
        self.output.weight = self.table.weight
        self.lstm = nn.LSTM(6, 6)
        self.conv.bias.requires_grad_(False)
        self.norm.eval()
        self.hidden.register_forward_hook(lambda module, args, output: None)
        self.register_forward_pre_hook(lambda module, args: None)


def snapshot(model):
    modules = list(model.named_modules(remove_duplicate=False))
    return {
        "modules": [(name, id(module), type(module)) for name, module in modules],
        "attributes": [sorted(vars(module)) for _, module in modules],
        "parameters": [(n, id(p), p.requires_grad) for n, p in model.named_parameters(remove_duplicate=False)],
        "hooks": [{kind: list(getattr(module, kind).items()) for kind in _HOOKS} for _, module in modules],
        "training": [module.training for _, module in modules],
    }


# What is asked for, and what the message says.
BAD = {
    "a rank no layer can take": (lambda m: lb.bayesianize(m, lb.KTied(rank=500)), "rank=500.* fits no layer"),
    "an unknown estimator": (
        lambda m: lb.bayesianize(m, lb.MeanField(estimator="rank1")),
        r"estimator=\.\.\.\) takes one of 'auto', 'local', 'flipout', 'weight', not 'rank1'",
    ),
    "an estimator that one layer does not offer": (
        lambda m: lb.bayesianize(m, lb.MeanField(estimator="flipout")),
        r"'flipout' does not apply to MeanField on (LSTM|Lookup); it offers \(",
    ),
    "a selector that matches nothing": (
        lambda m: lb.bayesianize(m, lb.MeanField(), where=lb.types(nn.Conv3d)),
        r"types\(Conv3d\) matches nothing that MeanField supports; it could match conv \(Conv2d\)",
    ),
    "a glob that matches nothing": (
        lambda m: lb.bayesianize(m, lb.MeanField(), where=lb.named("layer4.*")),
        r"named\('layer4.\*'\) matches nothing that MeanField supports",
    ),
    "a name that does not exist": (
        lambda m: lb.bayesianize(m, lb.MeanField(), where=lb.named("hiden")),
        "matches nothing: the model has no module named 'hiden'; it could match",
    ),
    "a predicate that matches nothing": (
        lambda m: lb.bayesianize(m, lb.MeanField(), where=lambda name, module: False),
        "where matches nothing that MeanField supports",
    ),
    "a layer that the method cannot serve": (
        lambda m: lb.bayesianize(m, lb.MeanField(), where=lb.named("norm")),
        r"norm \(BatchNorm2d\) was asked for by name, but MeanField does not support BatchNorm2d",
    ),
    "a selector of layers that the method cannot serve": (
        lambda m: lb.bayesianize(m, lb.Rank1(), where=lb.norms()),
        r"norms\(\) matches nothing that Rank1 supports, only norm \(BatchNorm2d\): Rank1 does not support "
        r"BatchNorm2d; it could match conv \(Conv2d\)",
    ),
    "a rule that matches nothing": (
        lambda m: lb.bayesianize(m, {"conv": lb.MeanField(), nn.Conv1d: None}),
        "Conv1d matches nothing",
    ),
    "a rule with a name that does not exist": (
        lambda m: lb.bayesianize(m, {"con": None, "*": lb.MeanField()}),
        "no module named 'con'",
    ),
    "rules that leave everything alone": (
        lambda m: lb.bayesianize(m, {"*": None}),
        "the rules leave every layer alone",
    ),
    "no rules": (lambda m: lb.bayesianize(m, {}), "the mapping of rules is empty"),
    "a rule that is no selector": (lambda m: lb.bayesianize(m, {3: lb.MeanField()}), "a rule is a selector, a glob"),
    "a rule without a method": (lambda m: lb.bayesianize(m, {"*": "MeanField"}), "a rule takes a method or None"),
    "a class for a method": (lambda m: lb.bayesianize(m, lb.MeanField), "takes a method such as"),
    "a mapping with where": (
        lambda m: lb.bayesianize(m, {"*": lb.MeanField()}, where=lb.norms()),
        "put the selectors in its keys",
    ),
    "an ensemble among rules": (
        lambda m: lb.bayesianize(m, {"*": lb.DeepEnsemble()}),
        "DeepEnsemble takes the whole model",
    ),
    "two methods for one weight": (
        lambda m: lb.bayesianize(m, {"output": lb.MeanField(), "table": lb.KTied()}),
        r"output \(Linear\) and table \(Embedding\) share one weight.* two methods",
    ),
    "different numbers of components": (
        lambda m: lb.bayesianize(m, {"conv": lb.Rank1(components=2), "*": lb.BatchEnsemble(components=3)}),
        r"one component index serves the whole model, but conv \(Conv2d\) has 2 components and "
        r"hidden \(Linear\) has 3",
    ),
    "a prior without a divergence": (
        lambda m: lb.bayesianize(m, lb.MeanField(prior=lb.HalfCauchy())),
        "posterior under the positive HalfCauchy prior has an infinite KL divergence",
    ),
    "a container by name": (
        lambda m: lb.bayesianize(nn.Sequential(m), lb.MeanField(), where=lb.named("0")),
        r"0 \(Net\) is not a layer that can be converted; lb.named\('0.\*'\) selects what is inside",
    ),
    "an ensemble of a method that finds nothing": (
        lambda m: lb.bayesianize(m, lb.DeepEnsemble(of=lb.MeanField()), where=lb.named("nothing")),
        "no module named 'nothing'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_the_model_is_as_it_was(case):
    convert, message = BAD[case]
    model = Net()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = snapshot(model)
    with pytest.raises((ValueError, TypeError), match=message) as error:
        convert(model)
    assert "\n" not in str(error.value)
    assert snapshot(model) == before
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    converted = lb.bayesianize(model, lb.MeanField())
    assert converted(torch.randn(2, 2, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize("method", [lb.MeanField(), lb.EMP(), lb.DeepEnsemble(), lb.DeepEnsemble(of=lb.Rank1())])
def test_converting_twice(method):
    for first in (lb.MeanField(), lb.EMP(), lb.DeepEnsemble(members=2)):
        model = lb.bayesianize(SmallNet(), first)
        before, state = snapshot(model), copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="already converted"):
            lb.bayesianize(model, method)
        assert snapshot(model) == before
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lb.KTied(rank=0), r"KTied\(rank=...\) takes a whole number from 1, not 0"),
        (lambda: lb.MeanField(init_std=-0.1), r"MeanField\(init_std=...\) takes a positive number, not -0.1"),
        (lambda: lb.EMP(init_std=-1.0), r"EMP\(init_std=...\) takes a positive number"),
        (lambda: lb.Rank1(posterior="cauchy", prior=lb.Normal(1, 0.1)), "Cauchy posterior under a Normal prior"),
        (lambda: lb.Rank1(components=0), r"Rank1\(components=...\) takes a whole number from 1, not 0"),
        (lambda: lb.BatchEnsemble(components=0), "takes a whole number from 1, not 0"),
        (lambda: lb.ECMP(components=0), "takes a whole number from 1, not 0"),
        (lambda: lb.DeepEnsemble(members=0), "takes a whole number from 1, not 0"),
        (lambda: lb.Rank1(estimator="local"), "takes one of 'auto', 'rank1', 'weight', not 'local'"),
    ],
)
def test_bad_methods_are_refused_where_they_are_written(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_something_that_is_no_model():
    with pytest.raises(TypeError, match="takes an nn.Module, not dict"):
        lb.bayesianize({}, lb.MeanField())
    with pytest.raises(ValueError, match="MeanField finds no layer it supports in this ReLU"):
        lb.bayesianize(nn.ReLU(), lb.MeanField())


def test_a_plain_model_has_no_point_estimate():
    with pytest.raises(ValueError, match="has no converted layer"):
        lb.point_estimate(SmallNet())
