"""Distributions of one kind as one."""

import pytest
import torch
from torch import nn

import leanbayes as lb

METHODS = [lb.MeanField(init_std=0.2), lb.KTied(), lb.Rank1(components=2), lb.VariationalDropout(share="weight")]


def put_tensors_before_parameters(model):
    """What FSDP does while its forward runs: a tensor as an attribute, and the same one among the parameters."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = module.__dict__[name] = parameter.detach().clone().requires_grad_()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_tensors_in_the_place_of_parameters_are_those_of_each(method):
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), method)
    elbo, x, y = lb.ELBO(model, 50), torch.randn(8, 3), torch.randint(2, (8,))

    def terms_and_gradients():
        with lb.sampling(seed=1):
            terms = elbo(x, y)
        tensors = [tensor for module in model.modules() for tensor in module._parameters.values() if tensor is not None]
        return terms.kl, terms.outputs, torch.autograd.grad(terms.loss, tensors)

    wanted = terms_and_gradients()
    put_tensors_before_parameters(model)
    torch.testing.assert_close(terms_and_gradients(), wanted)
