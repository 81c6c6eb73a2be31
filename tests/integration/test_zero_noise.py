"""With standard deviations at zero every estimator draws the original network."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.posteriors.variational_dropout import VariationalDropoutPosterior
from tests.families import marked
from tests.networks import NETWORKS, RECURRENT, build

SILENT = {
    "mean_field": (lb.MeanField(init_std=1e-9, bias="same"), ("local", "flipout", "weight")),
    "k_tied": (lb.KTied(rank=2, init_std=1e-9), ("local", "flipout", "weight")),
    "vd_layer": (lb.VariationalDropout(), ("local", "flipout", "weight")),
    "vd_neuron": (lb.VariationalDropout(share="neuron"), ("local", "flipout", "weight")),
    "vd_weight": (lb.VariationalDropout(share="weight"), ("local", "flipout", "weight")),
    "rank1": (lb.Rank1(init_std=1e-9), ("rank1", "weight")),
    "rank1_cauchy": (lb.Rank1(posterior="cauchy", init_std=1e-12), ("rank1", "weight")),
    "rank1_lognormal": (lb.Rank1(posterior="lognormal", init_std=1e-9), ("rank1", "weight")),
    "rank1_additive": (lb.Rank1(form="additive", init_std=1e-9), ("rank1", "weight")),
    "batch_ensemble": (lb.BatchEnsemble(init_spread=0.0), ("rank1", "weight")),
    "mc_dropout": (lb.MCDropout(p=0), ("rank1", "weight")),
    "drop_connect": (lb.DropConnect(p=0), ("weight",)),
    "emp": (lb.EMP(init_std=1e-9), ("weight", "example")),
    "ecmp": (lb.ECMP(init_std=1e-9), ("weight",)),
}
# Weights that a table shares are left out: an index input admits the estimator "weight" alone (and "local").
FEEDFORWARD = [name for name in NETWORKS if name not in RECURRENT]


@pytest.fixture(autouse=True)
def silent_variational_dropout(monkeypatch):
    """log alpha is kept from -20, where the noise is still 5e-5 of the weight."""
    monkeypatch.setattr(VariationalDropoutPosterior, "scale", lambda self: torch.zeros_like(self.loc))


def maps(name, module):
    return not isinstance(module, nn.Embedding) and not name.endswith(("lm_head", "decoder"))


def assert_draws_the_original(plain, model, inputs, batch_dim, **options):
    with torch.no_grad():
        expected = plain(*inputs)
        with lb.sampling(**options):
            torch.testing.assert_close(model(*inputs), expected, rtol=1e-5, atol=1e-5)
        with lb.sampling(n=2, batch_dim=batch_dim, **options):
            folded = lb.split(model(*lb.fold(inputs, 2, batch_dim)), 2, batch_dim)
            torch.testing.assert_close(folded, expected.expand(2, *expected.shape), rtol=1e-5, atol=1e-5)


CASES = [(n, f, e) for n in FEEDFORWARD for f, (_, names) in SILENT.items() for e in names]
QUICK = ("small", "transformer_time_first", "gpt2", "convnext")


@pytest.mark.parametrize(("network", "family", "estimator"), marked(CASES, lambda n, f, e: n in QUICK))
def test_every_estimator(network, family, estimator):
    plain, inputs = build(network)
    model = lb.bayesianize(copy.deepcopy(plain), SILENT[family][0], where=maps)
    batch_dim = 1 if network == "transformer_time_first" else 0
    for joint in (False, True):
        assert_draws_the_original(plain, model, inputs, batch_dim, estimator=estimator, joint=joint)


@pytest.mark.parametrize("family", SILENT)
@pytest.mark.parametrize("network", [*RECURRENT, "bert", "gpt2"])
def test_recurrent_and_tied_layers(network, family):
    plain, inputs = build(network)
    model = lb.bayesianize(copy.deepcopy(plain), SILENT[family][0])
    for joint in (False, True):
        assert_draws_the_original(plain, model, inputs, 0, joint=joint)


@pytest.mark.parametrize("family", SILENT)
def test_embeddings(family):
    plain, inputs = build("lstm")
    model = lb.bayesianize(copy.deepcopy(plain), SILENT[family][0], where=lb.types(nn.Embedding))
    assert_draws_the_original(plain, model, inputs, 0)
