"""Samples folded in the batch of whole networks equal separate runs with the same noise."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_folds
from tests.families import ENSEMBLES, LAYERWISE, NOT_RECURRENT, ONE_OF_EACH, everywhere, marked
from tests.networks import NETWORKS, RECURRENT, build

SERVED = [(n, f) for n in NETWORKS for f in LAYERWISE if not (f in NOT_RECURRENT and n in RECURRENT)]


def quick(network, family):
    return network in ("small", "lstm", "gpt2") or network != "resnet18" and family in ONE_OF_EACH


@pytest.mark.parametrize(("network", "family"), marked(SERVED, quick))
def test_layers(network, family):
    model, inputs = build(network)
    model = lb.bayesianize(model, LAYERWISE[family], where=everywhere)
    assert_folds(model, inputs, batch_dim=1 if network == "transformer_time_first" else 0)


@pytest.mark.parametrize(("network", "family"), marked([(n, f) for n in NETWORKS for f in ENSEMBLES], quick))
def test_ensembles(network, family):
    model, inputs = build(network)
    model = lb.bayesianize(model, ENSEMBLES[family])
    assert_folds(model, inputs, batch_dim=1 if network == "transformer_time_first" else 0)


class TimeFirst(nn.Module):
    """Everything that a network with the time axis in front is made of."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(4)
        self.lstm = nn.LSTM(4, 5)
        self.mix = nn.Bilinear(5, 4, 6)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(6, 3)

    def forward(self, tokens):  # [T, B]
        x = self.embedding(tokens)
        x = x + self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)  # a convolution has the examples in front
        x = self.norm(x)
        y, _ = self.lstm(x)
        return self.output(self.dropout(self.mix(y, x)))


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT])
def test_a_network_with_the_time_axis_in_front(family):
    torch.manual_seed(0)
    model = lb.bayesianize(TimeFirst(), LAYERWISE[family], where=everywhere)
    assert_folds(model, torch.randint(0, 9, (6, 4)), batch_dim=1)


def test_its_own_dropout_folds_too():
    model = lb.bayesianize(TimeFirst(), lb.MCDropout(p=None))
    assert_folds(model, torch.randint(0, 9, (6, 4)), batch_dim=1)


def test_folding_and_splitting_along_the_second_axis_are_inverse():
    x = torch.randn(5, 2, 3)
    folded = lb.fold(x, 4, batch_dim=1)
    assert folded.shape == (5, 8, 3)
    torch.testing.assert_close(lb.split(folded, 4, batch_dim=1), x.expand(4, 5, 2, 3))
