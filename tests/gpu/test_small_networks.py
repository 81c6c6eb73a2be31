"""Small networks on a GPU: side by side, and behind scikit-learn's interface, their steps are recorded."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.learn import _base
from leanbayes.training import TrainConfig, fit_many

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def networks(method=None):
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 1))
        for _ in range(4)
    ]
    return nets if method is None else [lb.bayesianize(net, method) for net in nets]


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(40, 3, generator=generator) for _ in range(4)]
    return [(x, x.sum(1)) for x in inputs]


def config(device, **settings):
    return TrainConfig(epochs=20, batch_size=8, lr=0.01, precision="32", device=device, **settings)


def test_networks_side_by_side_become_what_they_do_on_the_cpu():
    on_cpu = networks()
    on_gpu = [copy.deepcopy(net).cuda() for net in on_cpu]
    fit_many(on_cpu, data(), config("cpu"), likelihood=lb.Gaussian(2.0))
    history = fit_many(on_gpu, data(), config("cuda"), likelihood=lb.Gaussian(2.0))
    assert history.how == "float32, recorded"
    for one, other in zip(on_gpu, on_cpu):
        for got, wanted in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(got.cpu(), wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "method",
    [
        lb.EMP(3),
        lb.ECMP(3),
        lb.MCDropout(0.1),
        lb.MeanField(),
        lb.KTied(2),
        lb.Rank1(components=2),
        lb.BatchEnsemble(2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_family_is_recorded_side_by_side(method):
    nets = [net.cuda() for net in networks(method)]
    history = fit_many(nets, data(), config("cuda"), likelihood=lb.Gaussian(2.0))
    assert history.how == "float32, recorded"
    assert history["nll"][-1] < history["nll"][0]


def test_estimators_record_their_steps(monkeypatch):
    steps = []

    def capture(*args, **options):
        steps.append(lb.capture(*args, **options))
        return steps[-1]

    monkeypatch.setattr(_base, "capture", capture)
    random = np.random.default_rng(0)
    X = random.normal(size=(100, 3))
    y = X.sum(1)
    for method in (None, lb.DeepEnsemble(3), lb.Rank1(components=2)):
        regressor = lb.BayesRegressor(method, epochs=10, device="cuda", random_state=0).fit(X, y)
        assert steps[-1].how == "recorded" and steps[-1].why is None, steps[-1].why
        assert regressor.loss_curve_[-1] < regressor.loss_curve_[0]
        again = lb.BayesRegressor(method, epochs=10, device="cuda", random_state=0).fit(X, y)
        np.testing.assert_allclose(again.predict(X), regressor.predict(X), rtol=1e-3, atol=1e-3)
