"""Methods as values: defaults, JSON, and what they refuse."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.methods import Method, fan_in, from_json, register_posterior, registered, to_json
from leanbayes.ops import op_for
from leanbayes.testing import assert_refused

METHODS = [
    lb.MeanField(),
    lb.MeanField(prior=lb.LogUniform(exact=True), estimator="weight", init_std=0.1, bias="same"),
    lb.MeanField(prior=lb.Pretrained(0.2)),
    lb.KTied(rank=3, prior=lb.HeNormal(), bias="same"),
    lb.VariationalDropout(share="neuron", prior=lb.StudentT(1e-16, constant=True), init_log_alpha=-2),
    lb.VariationalDropout(prior=lb.ARD()),
    lb.VarianceLayer("uniform", estimator="local"),
    lb.Rank1(),
    lb.Rank1(8, posterior="cauchy", prior=lb.Cauchy(1.0, 0.2), on="input", random_sign=0.5, init_std=0.2),
    lb.Rank1(form="additive", init_spread=0.1, estimator="weight"),
    lb.Rank1(posterior="cauchy", norms="component", clip=10.0),
    lb.BatchEnsemble(6, random_sign=0.5, init_spread=0.2),
    lb.EMP(3, prior=lb.Normal(0, 0.5), learn_mixing=True, draw="example"),
    lb.ECMP(7, init_std=0.1),
    lb.MCDropout(0.2),
    lb.MCDropout(p=None),
    lb.DropConnect(0.3, prior=lb.Normal(0, 2)),
    lb.DeepEnsemble(3, of=lb.VarianceLayer(), reinit=False),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_methods_survive_json(method):
    text = json.dumps(to_json(method))
    assert from_json(json.loads(text)) == method


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_methods_are_frozen_values(method):
    assert dataclasses.replace(method) == method and isinstance(hash(method), int)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, dataclasses.fields(method)[0].name, 1)


def test_all_methods_and_priors_are_registered_under_their_names():
    for name, cls in registered().items():
        assert name == cls.__name__ == cls.registered_name
        assert getattr(lb, name) is cls
    assert len(registered()) == 12 + 10


def test_defaults_of_the_contract():
    assert lb.MeanField() == lb.MeanField(lb.Normal(0, 0.3), "auto", 0.01, "point")
    assert lb.KTied() == lb.KTied(2, lb.Normal(0, 0.3), "auto", 0.01, "point")
    assert lb.VariationalDropout() == lb.VariationalDropout("layer", lb.LogUniform(), "auto", -5)
    assert lb.VarianceLayer() == lb.VarianceLayer("gaussian", "auto")
    assert lb.Rank1() == lb.Rank1(4, "normal", None, "both", "multiplicative", 1.0)
    assert lb.BatchEnsemble() == lb.BatchEnsemble(4, 1.0, 0.1)
    assert lb.EMP() == lb.EMP(5, lb.Normal(0, 1), 0.01, False, "batch")
    assert lb.ECMP() == lb.ECMP(5, lb.Normal(0, 1), 0.01, False)
    assert lb.MCDropout().p == lb.DropConnect().p == 0.1
    assert lb.DeepEnsemble() == lb.DeepEnsemble(5, None, True)


BAD = [
    (lb.MeanField, {"init_std": -0.1}),
    (lb.MeanField, {"init_std": 0}),
    (lb.MeanField, {"init_std": math.nan}),
    (lb.MeanField, {"estimator": "best"}),
    (lb.MeanField, {"estimator": "rank1"}),
    (lb.MeanField, {"bias": "random"}),
    (lb.MeanField, {"prior": 1.0}),
    (lb.MeanField, {"prior": None}),
    (lb.KTied, {"rank": 0}),
    (lb.KTied, {"rank": -1}),
    (lb.KTied, {"rank": 2.0}),
    (lb.KTied, {"rank": True}),
    (lb.KTied, {"init_std": -1.0}),
    (lb.KTied, {"estimator": "example"}),
    (lb.VariationalDropout, {"share": "filter"}),
    (lb.VariationalDropout, {"init_log_alpha": 30}),
    (lb.VariationalDropout, {"init_log_alpha": "low"}),
    (lb.VariationalDropout, {"prior": "ard"}),
    (lb.VarianceLayer, {"noise": "cauchy"}),
    (lb.VarianceLayer, {"estimator": "rank1"}),
    (lb.Rank1, {"components": 0}),
    (lb.Rank1, {"components": 2.5}),
    (lb.Rank1, {"posterior": "laplace"}),
    (lb.Rank1, {"on": "weights"}),
    (lb.Rank1, {"form": "subtractive"}),
    (lb.Rank1, {"estimator": "local"}),
    (lb.Rank1, {"random_sign": 1.5}),
    (lb.Rank1, {"random_sign": math.nan}),
    (lb.Rank1, {"init_std": 0.0}),
    (lb.Rank1, {"init_spread": -0.1}),
    (lb.Rank1, {"init_spread": "wide"}),
    (lb.Rank1, {"norms": "own"}),
    (lb.Rank1, {"clip": 0.0}),
    (lb.BatchEnsemble, {"norms": "own"}),
    (lb.Rank1, {"prior": 0.1}),
    (lb.BatchEnsemble, {"components": 0}),
    (lb.BatchEnsemble, {"random_sign": 2}),
    (lb.BatchEnsemble, {"estimator": "flipout"}),
    (lb.EMP, {"components": 0}),
    (lb.EMP, {"prior": lb.Cauchy()}),
    (lb.EMP, {"draw": "row"}),
    (lb.EMP, {"learn_mixing": "yes"}),
    (lb.ECMP, {"init_std": 0.0}),
    (lb.MCDropout, {"p": 1.0}),
    (lb.MCDropout, {"p": -0.1}),
    (lb.MCDropout, {"p": "0.1"}),
    (lb.MCDropout, {"p": True}),
    (lb.MCDropout, {"prior": lb.LogUniform()}),
    (lb.MCDropout, {"estimator": "local"}),
    (lb.DropConnect, {"p": None}),
    (lb.DropConnect, {"estimator": "rank1"}),
    (lb.DeepEnsemble, {"members": 0}),
    (lb.DeepEnsemble, {"of": "mean-field"}),
    (lb.DeepEnsemble, {"of": lb.DeepEnsemble()}),
    (lb.DeepEnsemble, {"reinit": "no"}),
]


@pytest.mark.parametrize(("make", "arguments"), BAD, ids=lambda v: v.__name__ if isinstance(v, type) else str(v))
def test_bad_arguments_are_refused_with_one_clear_sentence(make, arguments):
    assert make.__name__ in assert_refused(make, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"posterior": "cauchy", "prior": lb.Normal(1, 0.1)},
            "a Cauchy posterior under a Normal prior has an infinite",
        ),
        (
            {"posterior": "halfcauchy", "prior": lb.Normal(1, 0.1)},
            "HalfCauchy posterior under a Normal prior has an inf",
        ),
        ({"posterior": "normal", "prior": lb.HalfCauchy()}, "under the positive HalfCauchy prior has an infinite"),
        ({"posterior": "lognormal", "random_sign": 0.5}, "a lognormal factor is positive: random_sign must be 1"),
        ({"posterior": "halfcauchy", "form": "additive"}, "a halfcauchy factor cannot start at 0"),
    ],
    ids=str,
)
def test_rank1_refuses_what_has_no_meaning(arguments, message):
    with pytest.raises(ValueError, match=message):
        lb.Rank1(**arguments)


def test_unknown_json_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown method or prior 'Fancy'; this version knows ARD, "):
        from_json({"type": "Fancy"})
    with pytest.raises(ValueError, match="unknown method or prior None"):
        from_json({"rank": 2})
    with pytest.raises(ValueError, match="KTied"):
        from_json({"type": "KTied", "rank": 0})


def test_names_are_registered_once():
    with pytest.raises(ValueError, match="named 'MeanField' is already registered"):
        register_posterior("MeanField")(type("Other", (), {}))


def test_fan_in_is_the_number_of_weights_behind_one_output():
    for module, fan in (
        (nn.Linear(5, 3), 5),
        (nn.Conv2d(4, 6, (2, 3), groups=2), 12),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 18),
        (nn.Embedding(7, 3), 1),
    ):
        assert fan_in(module.weight, op_for(module)) == fan
    assert fan_in(torch.ones(3), None) == 1


def test_who_shares_an_index():
    scopes = {lb.Rank1: "model", lb.BatchEnsemble: "model", lb.DeepEnsemble: "model", lb.EMP: "layer", lb.ECMP: "layer"}
    for method in METHODS:
        assert isinstance(method, Method) and method.scope == scopes.get(type(method))
