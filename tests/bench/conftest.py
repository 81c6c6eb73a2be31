"""A network that is measured in milliseconds."""

import pytest
from torch import nn

from leanbayes.bench.networks import NETWORKS, Network


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def network(monkeypatch) -> Network:
    """The network "tiny", which `bench` knows during the test."""
    one = Network("tiny", "A tiny network", tiny, (5,), 3, False, {"cpu": 4}, {"cpu": 2})
    monkeypatch.setitem(NETWORKS, "tiny", one)
    return one
