"""Drawn weights, one per sample."""

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
