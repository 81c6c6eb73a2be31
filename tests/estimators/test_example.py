"""One patch per example."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import EstimatorSuite, assert_probability_close


class TestDense(EstimatorSuite):
    estimator = "example"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Linear(4, 3), lb.EMP(components=3, init_std=0.5))

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestLearnedMixing(TestDense):
    def make_layer(self):
        layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.EMP(components=3, init_std=0.5, learn_mixing=True))
        with torch.no_grad():
            layer.mixing.logits.copy_(torch.tensor([0.5, -0.5, 0.0]))
        return layer


class TestEmbedding(EstimatorSuite):
    estimator = "example"

    def make_layer(self):
        return lb.nn.BayesianLayer(nn.Embedding(5, 3, padding_idx=0), lb.EMP(components=3, init_std=0.5))

    def make_input(self, rows):
        return torch.randint(0, 5, (rows, 2))


def test_each_row_has_a_copy_of_its_own_and_all_copies_get_gradients():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.EMP(components=3, init_std=0.5, draw="example"))
    x = torch.randn(1, 4).expand(600, 4)
    y = layer(x)
    copies = torch.stack([x[0] @ layer.weight.mean(k).T + layer.bias.mean(k) for k in range(3)])
    which = (y[:, None] - copies).abs().sum(2).argmin(1)
    torch.testing.assert_close(y, copies[which])
    for k in range(3):
        assert_probability_close(which == k, 1 / 3)
    y.sum().backward()
    assert (layer.weight.posterior.copies.grad.abs().flatten(1).sum(1) > 0).all()


def test_a_fixed_component_serves_all_rows():
    layer = lb.nn.BayesianLayer(nn.Linear(4, 3), lb.EMP(components=3, init_std=0.5, draw="example"))
    x = torch.randn(5, 4)
    with lb.sampling(component=2):
        torch.testing.assert_close(layer(x), x @ layer.weight.mean(2).T + layer.bias.mean(2))
