"""Which estimators apply, and what is said where one does not."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.estimators import applicable, estimator, register_estimator, resolve
from leanbayes.ops import op_for
from leanbayes.posteriors.mean_field import MeanFieldPosterior

GAUSSIAN = ("local", "flipout", "weight")


def built(method, module):
    return lb.nn.BayesianLayer(module, method).weight.posterior


@pytest.mark.parametrize(
    ("module", "method", "names"),
    [
        (nn.Linear(2, 2), lb.MeanField(), GAUSSIAN),
        (nn.Conv1d(2, 2, 1), lb.Rank1(), ("rank1", "weight")),
        (nn.Embedding(3, 2), lb.MeanField(), GAUSSIAN),
        (nn.Embedding(3, 2), lb.Rank1(), ("weight",)),
        (nn.EmbeddingBag(3, 2), lb.MeanField(), ("weight",)),
        (nn.Linear(2, 2), lb.EMP(), ("weight", "example")),
        (nn.Linear(2, 2), lb.ECMP(), ("weight",)),
    ],
    ids=str,
)
def test_what_a_family_offers_and_an_op_admits(module, method, names):
    found = applicable(built(method, module), [op_for(module)])
    assert tuple(each.name for each in found) == names


def test_auto_is_local_only_for_one_vector_of_a_weight_that_is_used_once():
    posterior, op = MeanFieldPosterior(torch.randn(2, 2), 0.1), op_for(nn.Linear(2, 2))
    assert resolve("auto", posterior, [op], "Mine", once=True) == ("local", "flipout")
    assert resolve("auto", posterior, [op], "Mine", once=False) == ("flipout", "flipout")
    assert resolve("local", posterior, [op], "Mine", once=False) == ("local", "local")


@pytest.mark.parametrize(
    ("module", "method", "chosen"),
    [
        (nn.Linear(2, 2), lb.MeanField(), "flipout"),  # on its own: it may be called again
        (nn.Linear(2, 2), lb.KTied(estimator="flipout"), "flipout"),
        (nn.Embedding(4, 3), lb.VariationalDropout(), "flipout"),
        (nn.Conv2d(2, 2, 1), lb.VariationalDropout(estimator="local"), "local"),
        (nn.EmbeddingBag(4, 3), lb.MeanField(), "weight"),
        (nn.Linear(2, 2), lb.Rank1(), "rank1"),
        (nn.Embedding(4, 3), lb.Rank1(), "weight"),
        (nn.Linear(2, 2), lb.MCDropout(), "rank1"),
        (nn.Linear(2, 2), lb.DropConnect(), "weight"),
        (nn.Linear(2, 2), lb.EMP(), "weight"),
        (nn.Linear(2, 2), lb.EMP(draw="example"), "example"),
        (nn.Linear(2, 2), lb.ECMP(), "weight"),
    ],
    ids=str,
)
def test_auto_picks_the_best_that_a_layer_admits(module, method, chosen):
    assert lb.nn.BayesianLayer(module, method).estimator == chosen


def test_an_estimator_that_does_not_apply_is_an_error_that_lists_those_that_do():
    with pytest.raises(
        ValueError, match=r"'flipout' does not apply to MeanField on BagLookup; it offers \('weight',\)"
    ):
        lb.nn.BayesianLayer(nn.EmbeddingBag(3, 2), lb.MeanField(estimator="flipout"))
    layer = lb.nn.BayesianLayer(nn.Linear(3, 2), lb.Rank1())
    with pytest.raises(ValueError, match=r"'local' does not apply to Rank1 on Dense; it offers \('rank1', 'weight'\)"):
        with lb.sampling(estimator="local"):
            layer(torch.ones(1, 3))
    with pytest.raises(ValueError, match="'magic' does not apply to Rank1 on Dense .no estimator has that name.; it"):
        with lb.sampling(estimator="magic"):
            layer(torch.ones(1, 3))


def test_names_are_registered_once():
    with pytest.raises(ValueError, match="an estimator named 'local' is already registered"):
        register_estimator("local")(estimator("weight").function)
