"""Gradients of a scaling on a GPU, and rank-1 layers that use them."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling, using
from leanbayes.testing import sample_streams
from tests.kernels.sampling import relative_error
from tests.kernels.scale_slopes_checks import CASES, check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_gradients(case, dtype):
    check(case, "cuda", dtype)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_layer_has_the_gradients_of_full_precision(layout):
    layer = lb.nn.BayesianLayer(nn.Conv2d(64, 96, 3, padding=1), lb.BatchEnsemble(4, random_sign=0.5)).cuda()
    layer = layer.to(memory_format=layout)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(32, 64, 16, 16, device="cuda").to(memory_format=layout)

    def run(model, x, low):
        x = x.requires_grad_()
        streams = sample_streams(4)
        with torch.autocast("cuda", torch.bfloat16, enabled=low), using(Sampling(n=4, streams=streams)):
            y = model(x)
        return torch.autograd.grad((y.to(torch.float64) ** 2).sum(), [x, *model.parameters()])

    truths = run(exact, x.detach().double(), False)
    for found, truth in zip(run(layer, x.detach(), True), truths):
        assert relative_error(found, truth) < 0.02


def test_large_inputs_are_kept_once():
    layer = lb.nn.BayesianLayer(nn.Conv2d(64, 64, 3, padding=1, bias=False), lb.BatchEnsemble(4)).cuda()
    x = torch.randn(64, 64, 32, 32, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = layer(x)
    kept = torch.cuda.memory_allocated() - before
    # The output, and that of the product, for the gradient of its scale.
    assert kept < 2.2 * y.numel() * y.element_size()
