"""Drawn weights, one per sample."""

import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling, using
from leanbayes.testing import EstimatorSuite, sample_streams


class TestDense(EstimatorSuite):
    estimator = "weight"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, bias="same"))

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestEmbeddingBag(EstimatorSuite):
    estimator = "weight"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.EmbeddingBag(5, 3, mode="sum"), lb.MeanField(init_std=0.3))

    def make_input(self, rows):
        return torch.randint(0, 5, (rows, 4))


def test_all_rows_of_a_sample_see_one_weight():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(init_std=0.3, estimator="weight"))
    x = torch.randn(6, 4)
    generators = sample_streams(2)
    with using(Sampling(n=2, streams=generators)):
        y = layer(x)
    weights = layer.weight.posterior.rsample(2, Sampling(n=2, streams=sample_streams(2)))
    expected = torch.cat([x[:3] @ weights[0].T, x[3:] @ weights[1].T]) + layer.bias
    torch.testing.assert_close(y, expected)


def test_a_batch_that_does_not_divide_is_refused():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.MeanField(estimator="weight"))
    with pytest.raises(ValueError, match="a batch of 5 rows does not divide into 2 samples"), lb.sampling(n=2):
        layer(torch.randn(5, 4))


@pytest.mark.parametrize(
    "method", [lb.MeanField(), lb.DropConnect(), lb.EMP(), lb.Rank1(), lb.VarianceLayer()], ids=str
)
@pytest.mark.parametrize("zero_mean", [False, True])
def test_an_embedding_keeps_its_dtype(method, zero_mean):
    # An index has no dtype of its own that the output could follow.
    for dtype in (torch.float16, torch.float64):
        layer = lb.nn.BayesianLayer(nn.Embedding(5, 3), method).to(dtype)
        for n in (1, 2):
            with lb.sampling(n=n, estimator="weight", zero_mean=zero_mean):
                assert layer(torch.tensor([[0, 1], [2, 3]])).dtype == dtype


MODULE = sys.modules["leanbayes.estimators.weight"]  # the package has a function of that name
PATCHED = {
    "dense": (nn.Linear(6, 5), lambda rows: torch.randn(rows, 6), 0),
    "sequence": (nn.Linear(6, 5), lambda rows: torch.randn(rows, 3, 6), 0),
    "sequence first": (nn.Linear(6, 5, bias=False), lambda rows: torch.randn(3, rows, 6), 1),
    "conv": (nn.Conv2d(2, 3, 3, padding=1), lambda rows: torch.randn(rows, 2, 5, 5), 0),
    "transposed": (nn.ConvTranspose1d(2, 3, 3), lambda rows: torch.randn(rows, 2, 5), 0),
}


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", PATCHED)
def test_samples_sorted_by_copy_are_those_of_drawn_weights(kind, zero, monkeypatch):
    template, make, batch_dim = PATCHED[kind]
    torch.manual_seed(0)
    layer = lb.nn.BayesianLayer(template, lb.EMP(3, init_std=0.5, zero=zero))
    x = make(14)
    state = Sampling(n=7, batch_dim=batch_dim)
    expected, found = [], []
    for many, outputs in ((1 << 40, expected), (0, found)):
        monkeypatch.setattr(MODULE, "_MANY", many)
        for seed in range(3):
            with torch.no_grad(), using(state.replace(streams=sample_streams(7, seed))):
                outputs.append(layer(x))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_one_sample_uses_a_copy_in_place():
    torch.manual_seed(0)
    layer = lb.nn.BayesianLayer(nn.Linear(6, 5), lb.EMP(3, init_std=0.5))
    x = torch.randn(4, 6)
    copies = [
        nn.functional.linear(x, layer.weight.posterior.copies[k], layer.bias.posterior.copies[k]) for k in range(3)
    ]
    with torch.no_grad():
        for _ in range(5):
            y = layer(x)
            assert sum(torch.equal(y, copy) for copy in copies) == 1


def test_rows_that_do_not_divide_into_samples_are_an_error(monkeypatch):
    monkeypatch.setattr(MODULE, "_MANY", 0)
    layer = lb.nn.BayesianLayer(nn.Linear(6, 5), lb.EMP(3))
    with torch.no_grad(), lb.sampling(n=3), pytest.raises(ValueError, match="does not divide into 3 samples"):
        layer(torch.randn(4, 6))
