"""Sequences of named layers."""

import pytest
import torch
from torch import nn

from leanbayes.models import MLP, LeNet5


def test_a_slice_is_a_plain_sequence_of_the_same_layers():
    model = LeNet5().eval()
    x = torch.randn(2, 1, 28, 28)
    cut = list(dict(model.named_children())).index("dense1")
    first, rest = model[:cut], model[cut:]
    assert type(first) is type(rest) is nn.Sequential
    assert rest.dense1 is model.dense1
    assert torch.equal(rest(first(x)), model(x))


def test_one_layer_by_position():
    model = MLP(hidden=())
    assert isinstance(model[0], nn.Flatten)
    assert model[-1] is model.output
    with pytest.raises(IndexError):
        model[2]
