"""Convolutions of odd widths get channels of zeros in a traced graph, and keep their values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compiling import padding


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(padding, "_on_tensor_cores", lambda y: True)
    monkeypatch.setattr(padding, "_HALF", (torch.float64,))  # in which values can be told to be equal
    torch._dynamo.reset()


def run(net, pad):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    count = 0

    def backend(graph_module, inputs):
        nonlocal count
        count += padding.pad_convolutions(graph_module) if pad else 0
        return graph_module.forward

    y = torch.compile(net, backend=backend, fullgraph=True)(x)
    net.zero_grad()
    y.square().sum().backward()
    return y.detach(), [parameter.grad.clone() for parameter in net.parameters()], count


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [(9, 16), (16, 9), (11, 13)])
def test_values_and_gradients_stay(bias, widths):
    one, two = widths
    net = nn.Sequential(
        nn.Conv2d(3, one, 3, bias=bias), nn.ReLU(), nn.Conv2d(one, two, 3, 2, padding=1, bias=bias), nn.Sigmoid()
    ).double()
    wanted, found = run(net, False), run(net, True)
    assert found[2] == 1
    torch.testing.assert_close(found[0], wanted[0])
    for got, want in zip(found[1], wanted[1], strict=True):
        torch.testing.assert_close(got, want)


def test_the_cores_see_multiples_of_eight(monkeypatch):
    seen = []

    def backend(graph_module, inputs):
        padding.pad_convolutions(graph_module)

        class Look(torch.fx.Interpreter):
            def call_function(self, target, args, kwargs):
                if target is torch.conv2d:
                    seen.append(tuple(args[1].shape[:2]))
                return super().call_function(target, args, kwargs)

        return Look(graph_module).run

    net = lb.models.create("pyramidnet", depth=14, alpha=30).double()
    torch.compile(net, backend=backend, fullgraph=True)(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    assert len(seen) == 13 and all(width % 8 == 0 for pair in seen[1:] for width in pair)


@pytest.mark.parametrize(
    "net",
    [
        nn.Conv2d(3, 16, 3),  # the pixels of an image
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 1)),  # nothing is missing
        nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=3)),
    ],
)
def test_what_needs_no_zeros_is_left_alone(net):
    assert run(net.double(), True)[2] == 0


def test_other_precisions_are_left_alone(monkeypatch):
    monkeypatch.setattr(padding, "_HALF", (torch.bfloat16,))
    assert run(nn.Sequential(nn.Conv2d(3, 9, 3), nn.Conv2d(9, 9, 3)).double(), True)[2] == 0


@pytest.mark.parametrize("method", [lb.EMP(3), lb.Rank1(components=2), lb.MeanField(estimator="weight")])
def test_converted_networks(method):
    losses, counts = [], []
    for pad in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = lb.bayesianize(lb.models.create("pyramidnet", depth=8, alpha=9).double(), method)
        x, y = torch.randn(4, 3, 8, 8, dtype=torch.float64), torch.arange(4)

        def backend(graph_module, inputs, pad=pad):
            counts.append(padding.pad_convolutions(graph_module) if pad else 0)
            return graph_module.forward

        losses.append(torch.compile(lb.ELBO(net, 100), backend=backend, fullgraph=True)(x, y).loss.detach())
    assert sum(counts) >= 3
    torch.testing.assert_close(losses[1], losses[0])
