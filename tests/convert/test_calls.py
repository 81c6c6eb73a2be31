"""Which modules a model calls once: what makes local reparameterisation exact."""

import threading

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.convert.calls import called_once
from leanbayes.models import create


def names(model):
    dense = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    once = called_once(model, dense.values())
    return {name for name, module in dense.items() if id(module) in once}


class Net(nn.Module):
    def __init__(self, kind="plain"):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.c = self.a if kind == "alias" else nn.Linear(4, 4)
        self.norm, self.lstm = nn.BatchNorm1d(4), nn.LSTM(4, 4, batch_first=True)
        self.scale = nn.Parameter(torch.ones(4))
        self.kind = kind
        self.kept = None

    def forward(self, x, factor=2.0):
        x = self.norm(self.a(x)) * self.scale * factor
        if self.kind == "twice":
            x = self.b(x)
        if self.kind == "in training" and self.training:
            x = self.b(x)
        if self.kind == "by value" and x.sum() > 0:
            x = x + 1
        if self.kind == "by size":
            x = x.view(x.size(0), -1)
        if self.kind == "recurrent":
            x, (_, _) = self.lstm(x.unsqueeze(1))
            x = x[:, -1]
        if self.kind == "loop":
            for _ in range(x.shape[0]):
                x = self.b(x)
        self.kept = x
        return self.c(torch.relu(self.b(x)).flatten(1))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", {"a", "b", "c"}),
        ("by size", {"a", "b", "c"}),
        ("recurrent", {"a", "b", "c"}),
        ("twice", {"a", "c"}),
        ("in training", {"a", "c"}),
        ("alias", {"b"}),
        ("by value", set()),
        ("loop", set()),
    ],
)
def test_calls_are_counted(kind, expected):
    model = Net(kind)
    assert names(model) == expected
    assert model.kept is None and model.training  # nothing has happened to the model itself


def test_networks_of_this_package():
    assert names(create("mlp", in_features=4, hidden=[5, 6])) == {"dense1", "dense2", "output"}
    assert names(create("lenet5")) == {"dense1", "dense2"}
    assert names(create("resnet18")) == {"fc"}
    assert names(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))) == {"0", "1.1"}
    layer = nn.Linear(2, 2)
    assert called_once(layer, [layer]) == {id(layer)}


def test_what_is_not_known_to_be_exact_is_not_taken():
    model = lb.bayesianize(Net("twice"), lb.MeanField())
    assert (model.a.estimator, model.b.estimator) == ("local", "flipout")
    model = lb.bayesianize(Net("by value"), lb.MeanField())
    assert model.a.estimator == "flipout"
    tied = Net()
    tied.b.weight = tied.a.weight
    model = lb.bayesianize(tied, lb.MeanField())
    assert (model.a.estimator, model.b.estimator, model.c.estimator) == ("flipout", "flipout", "local")


def test_other_threads_go_on_while_a_model_is_converted():
    net, x, errors = Net(), torch.randn(3, 4), []
    stop = threading.Event()

    def work():
        try:
            while not stop.is_set():
                net.eval()(x)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(30):
        lb.bayesianize(create("mlp", in_features=4, hidden=[5, 6]), lb.MeanField())
    stop.set()
    thread.join()
    assert not errors
