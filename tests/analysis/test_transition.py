"""A layer that turns into a variance layer in training, as its monitor sees it."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import PhaseMonitor
from leanbayes.training import TrainConfig, fit


@pytest.mark.slow
def test_noise_alone_comes_to_predict_and_shuffled_noise_does_not():
    data = lb.data.load("digits")
    torch.manual_seed(0)
    layers = [nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 100), nn.BatchNorm1d(100), nn.ReLU()]
    net = nn.Sequential(nn.Flatten(), *layers, nn.Linear(100, 10))
    model = lb.bayesianize(net, lb.VariationalDropout(init_log_alpha=-2), where=lb.named("4"))
    monitor = PhaseMonitor(data.test.x, data.test.y, every=10, samples=20)
    settings = TrainConfig(epochs=80, lr=3e-3, variational_lr=0.05, schedule="linear", device="cpu")
    fit(model, (data.train.x, data.train.y), settings, callbacks=[monitor])
    rows = [record["layers"][0] for record in monitor.records]
    assert all(record["drawn"]["accuracy"] > 0.95 for record in monitor.records)
    assert rows[0]["scores"]["zero_mean"]["accuracy"] < 0.3 < 0.9 < rows[-1]["scores"]["zero_mean"]["accuracy"]
    assert all(row["scores"]["permuted"]["accuracy"] < 0.3 for row in rows)
    assert all(before["log_alpha"] < after["log_alpha"] for before, after in zip(rows, rows[1:]))
