"""Stacks of weights go to other memory formats, dtypes and devices as the weights would one by one."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.networks import SmallNet

X = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))
CONVOLUTIONS = lb.types(nn.Conv2d)
METHODS = {
    "ensemble": (lb.DeepEnsemble(3), None),
    "ensemble_of_mean_field": (lb.DeepEnsemble(3, of=lb.MeanField()), None),
    "ensemble_of_emp": (lb.DeepEnsemble(2, of=lb.EMP(3)), CONVOLUTIONS),
    "emp": (lb.EMP(3), CONVOLUTIONS),
    "ecmp": (lb.ECMP(3), CONVOLUTIONS),
}


@pytest.mark.parametrize("name", METHODS)
def test_channels_last_changes_the_layout_alone(name):
    method, where = METHODS[name]
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), method, where=where).eval()
    moved = copy.deepcopy(model).to(memory_format=torch.channels_last)
    stacks = [p for p in moved.parameters() if p.dim() == 5]
    assert all(p[0].is_contiguous(memory_format=torch.channels_last) for p in stacks)
    assert stacks or name == "ensemble_of_emp"  # one axis more
    outputs = []
    for each in (model, moved):
        with torch.no_grad(), lb.sampling(component=1, mean=True):
            outputs.append(each(X.contiguous(memory_format=torch.channels_last)))
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(lb.kl(moved), lb.kl(model))
    for (key, one), other in zip(model.state_dict().items(), moved.state_dict().values(), strict=True):
        assert torch.equal(one, other), key
    lb.ELBO(moved.train(), 100)(X, torch.randint(3, (5,))).loss.backward()
    assert moved.to(torch.float64)(X.double()).dtype == torch.float64


def test_shared_memory_is_that_of_the_parameters():
    model = lb.bayesianize(SmallNet(), lb.DeepEnsemble(2)).share_memory()
    assert all(parameter.is_shared() for parameter in model.parameters())
