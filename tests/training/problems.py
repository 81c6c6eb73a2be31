"""Small problems that the tests of training share."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import TrainConfig


def data(examples=96, seed=0):
    """Points in the plane and the quadrant pair they lie in."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 2, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network(method=None, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 2))
    return net if method is None else lb.bayesianize(net, method)


def config(**changes):
    settings = {"epochs": 3, "batch_size": 32, "lr": 0.01, "device": "cpu", "log_every": 2}
    # Tests of early stopping ask for it.
    settings |= {"hold_out": 0, "patience": None, "restore_best": False, "valid_samples": 1}
    return TrainConfig(**(settings | changes))


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def without_times(records):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]
