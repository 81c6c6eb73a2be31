"""How much a compiler has to follow: each call of hundreds of layers is one more to trace, fuse and generate."""

import torch
from torch import nn

import leanbayes as lb


def calls(layers):
    """Calls in the graph of a training step of so many patched norms."""
    torch.manual_seed(0)
    net = nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(4, 4), nn.BatchNorm1d(4))])
    elbo = lb.ELBO(lb.bayesianize(net, lb.EMP(), where=lb.norms()), dataset_size=100)
    found = []

    def count(graph, inputs):
        found.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward

    torch.compile(lambda x, y: elbo(x, y).loss, backend=count)(torch.randn(6, 4), torch.randint(4, (6,)))
    assert len(found) == 1  # one graph
    return found[0]


def test_a_patched_norm_takes_few_calls():
    # Linear, norm, its count of batches; then of scale and shift a choice of five operations and a divergence of three.
    assert (calls(6) - calls(2)) / 4 <= 24
