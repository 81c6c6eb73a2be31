"""A step asks the device nothing and copies nothing to it: what does cannot be recorded as a CUDA graph."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import leanbayes as lb
from leanbayes.models import create
from leanbayes.objectives import elbo as objective
from leanbayes.training import SideBySide

# Functions that wait for a GPU, copy to it, or have a result whose shape depends on values.
WAITS = {
    "tensor", "as_tensor", "from_numpy", "item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__",
    "__index__", "nonzero", "unique", "masked_select", "equal", "allclose", "randperm", "multinomial",
}  # fmt: skip
METHODS = [
    lb.MeanField(), lb.MeanField(estimator="weight"), lb.MeanField(estimator="local"),
    lb.KTied(2), lb.KTied(2, estimator="local"),
    lb.VariationalDropout(), lb.VarianceLayer(), lb.Rank1(components=2), lb.Rank1(components=2, posterior="cauchy"),
    lb.BatchEnsemble(3), lb.EMP(3), lb.ECMP(3), lb.MCDropout(0.1), lb.DropConnect(), lb.DeepEnsemble(3),
]  # fmt: skip


class Watch(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in WAITS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def table():
    return create("tabular_mlp", in_features=4, hidden=(6,), outputs=3), torch.randn(8, 4)


def images():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return net, torch.randn(8, 2, 4, 4)


def side_by_side():
    """Networks under one `vmap`, as `fit_many` trains them; an ensemble is none of them."""
    return [nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)) for _ in range(2)]


@pytest.mark.parametrize("method", METHODS[:-1], ids=repr)
def test_no_step_of_networks_side_by_side_waits(method, monkeypatch):
    monkeypatch.setattr(objective, "check_no_nan", lambda x: None)
    monkeypatch.setattr(lb.Gaussian, "check", lambda self, outputs, targets: None)
    torch.manual_seed(0)
    elbo = lb.ELBO(SideBySide([lb.bayesianize(net, method) for net in side_by_side()]), 100, lb.Gaussian(1.0))
    x, y = torch.randn(8, 2, 4), torch.randn(8, 2, 3)
    for _ in range(3):
        elbo(x, y).loss.backward()
    with Watch() as watch:
        elbo(x, y).loss.backward()
    assert not watch.found


@pytest.mark.parametrize("make", [table, images], ids=["table", "images"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_step_waits(method, make, monkeypatch):
    # On a GPU these look at the first batch alone.
    monkeypatch.setattr(objective, "check_no_nan", lambda x: None)
    monkeypatch.setattr(lb.Categorical, "check", lambda self, outputs, targets: None)
    torch.manual_seed(0)
    net, x = make()
    y = torch.randint(3, (8,))
    elbo = lb.ELBO(lb.bayesianize(net, method), 100)
    for _ in range(3):
        elbo(x, y).loss.backward()
    with Watch() as watch:
        elbo(x, y).loss.backward()
    assert not watch.found
