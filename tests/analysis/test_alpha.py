"""log_alpha against the moments of the weights."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import log_alpha
from tests.networks import SmallNet


@pytest.mark.parametrize(
    ("share", "shapes"), [("layer", [(), ()]), ("neuron", [(6,), (3,)]), ("weight", [(6, 64), (3, 6)])]
)
def test_variational_dropout_gives_its_rates_as_they_are_shared(share, shapes):
    model = lb.bayesianize(
        SmallNet(), lb.VariationalDropout(share=share, init_log_alpha=-1.5), where=lb.types(nn.Linear)
    )
    found = log_alpha(model)
    assert list(found) == ["hidden", "output"]
    for value, shape in zip(found.values(), shapes):
        torch.testing.assert_close(value, torch.full(shape, -1.5))
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.2), lb.KTied(init_std=0.2)])
def test_other_families_give_variance_over_squared_mean(method):
    model = lb.bayesianize(SmallNet(), method)
    for name, value in log_alpha(model).items():
        moments = model.get_submodule(name).weight.moments()
        torch.testing.assert_close(value, (moments.var / moments.mean.square()).log().detach())


def test_variance_layers_are_at_infinity():
    assert float(log_alpha(lb.bayesianize(nn.Linear(3, 2), lb.VarianceLayer()))[""]) == math.inf


def test_a_plain_model_has_none():
    with pytest.raises(ValueError, match="no layer with a standard deviation"):
        log_alpha(nn.Linear(2, 2))
