"""Layout of LeNet-5."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes.models import LeNet5


@pytest.mark.parametrize(
    ("name", "function"), [("relu", F.relu), ("tanh", torch.tanh), ("softplus", F.softplus), ("abs", torch.abs)]
)
def test_forward_with_each_activation(name, function):
    torch.manual_seed(0)
    model = LeNet5(activation=name)
    x = torch.rand(2, 1, 28, 28)
    y = F.max_pool2d(function(F.conv2d(x, model.conv1.weight, model.conv1.bias)), 2)
    y = F.max_pool2d(function(F.conv2d(y, model.conv2.weight, model.conv2.bias)), 2)
    y = function(F.linear(y.flatten(1), model.dense1.weight, model.dense1.bias))
    torch.testing.assert_close(model(x), F.linear(y, model.dense2.weight, model.dense2.bias))


def test_dense_activation_can_differ():
    model = LeNet5(dense_activation="abs")
    assert isinstance(model.act1, torch.nn.ReLU)
    assert model.act3(torch.tensor(-2.0)) == 2


def test_no_offsets_without_bias_and_affine():
    model = LeNet5(activation="tanh", bias=False, batch_norm="all", affine=False)
    assert [name for name, _ in model.named_parameters()] == [
        "conv1.weight",
        "conv2.weight",
        "dense1.weight",
        "dense2.weight",
    ]


def test_batch_norm_after_the_first_dense_layer():
    children = list(dict(LeNet5(batch_norm="dense", dropout=0.5).named_children()))
    assert children[children.index("flatten") :] == ["flatten", "drop", "dense1", "norm3", "act3", "dense2"]
    assert "norm1" not in children


def test_weights_start_uniform_by_fan_in():
    torch.manual_seed(0)
    weight = LeNet5().dense1.weight
    assert weight.abs().max() <= 800**-0.5
    assert weight.abs().max() > 0.999 * 800**-0.5
