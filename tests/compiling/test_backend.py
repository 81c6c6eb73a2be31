"""Compiled models and objectives."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compiling import backend


@pytest.fixture
def graphs(monkeypatch):
    """What the compiler was given."""
    found = []

    def record(self, graph_module, inputs):
        found.append(graph_module)
        return graph_module.forward

    monkeypatch.setattr(backend._Inductor, "__call__", record)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize("objective", [True, False])
def test_the_tenth_network_of_a_process_is_compiled_like_the_first(objective, graphs):
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    for _ in range(10):
        model = lb.bayesianize(nn.Sequential(nn.Linear(3, 2)), lb.Rank1())
        if objective:
            backend.compiled(lb.ELBO(model, 100))(x, y)
        else:
            backend.compiled(model)(x)
    assert len(graphs) == 10


def test_a_compiled_model_sees_changes_of_the_model(graphs):
    model = nn.Sequential(nn.Linear(3, 2))
    compiled = backend.compiled(model)
    x = torch.randn(4, 3)
    assert torch.equal(compiled(x), model(x))
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(compiled(x), model[0].bias.expand(4, 2)) and len(graphs) == 1
