"""Norms between rank-1 layers become one op in a traced graph, with the values and gradients that they had."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.compiling import rewrite


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    # The op runs by its reference where there are no kernels.
    monkeypatch.setattr(rewrite, "fused", lambda x: True)
    torch._dynamo.reset()


class PostActivation(nn.Module):
    """Two residual blocks, the second with a projection, norms behind convolutions."""

    def __init__(self):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.one, self.one_norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.two, self.two_norm = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.way, self.way_norm = nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.stem_norm(self.stem(x)))
        x = F.relu(self.one_norm(self.one(x)) + x)
        x = F.relu(self.two_norm(self.two(x)) + self.way_norm(self.way(x)))
        return self.head(x.mean((2, 3)))


def run(build, method, fuse, rows=6, layout=torch.channels_last):
    torch.manual_seed(0)
    model = lb.bayesianize(build().to(memory_format=layout), method)
    elbo = lb.ELBO(model, 1000)
    x = torch.randn(rows, 3, 6, 5).contiguous(memory_format=layout)
    y = torch.randint(4, (rows,))
    counts = []

    def backend(graph_module, inputs):
        counts.append(rewrite.fuse_scaled_norms(graph_module) if fuse else 0)
        return graph_module.forward

    loss = torch.compile(elbo, backend=backend, fullgraph=True)(x, y).loss
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()], list(model.buffers()), sum(counts)


@pytest.mark.parametrize(
    "build", [PostActivation, lambda: lb.models.create("wide_resnet", depth=10, width=1, classes=4)]
)
def test_values_gradients_and_statistics_stay(build):
    wanted, found = (run(build, lb.BatchEnsemble(2), fuse) for fuse in (False, True))
    assert found[3] >= 4 and wanted[3] == 0
    torch.testing.assert_close(found[0], wanted[0])
    for one, other in ((found[1], wanted[1]), (found[2], wanted[2])):
        for got, want in zip(one, other, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-5)


def test_what_has_no_scale_of_rows_is_left_alone():
    assert run(PostActivation, lb.EMP(2), True)[3] == 0
    assert run(PostActivation, lb.MeanField(estimator="weight"), True)[3] == 0


def test_signs_that_are_not_trained_are_left_to_the_compiler():
    assert run(PostActivation, lb.MeanField(estimator="flipout"), True)[3] == 0


def test_channels_first_is_left_to_the_compiler():
    assert run(PostActivation, lb.BatchEnsemble(2), True, layout=torch.contiguous_format)[3] == 0


def predicted(grad):
    torch.manual_seed(0)
    model = lb.bayesianize(PostActivation().to(memory_format=torch.channels_last), lb.BatchEnsemble(2))
    x = torch.randn(4, 3, 6, 5).contiguous(memory_format=torch.channels_last)
    model(x)  # statistics of its own
    model.eval()
    counts = []

    def backend(graph_module, inputs):
        counts.append(rewrite.fuse_scaled_norms(graph_module))
        return graph_module.forward

    with torch.set_grad_enabled(grad), lb.sampling(component=1):
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    return sum(counts)


def test_norms_in_eval_mode_stay_as_they_are_but_for_gradients():
    assert predicted(grad=False) == 4
    assert predicted(grad=True) == 0
