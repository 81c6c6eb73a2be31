"""Layout of the VGG-like network."""

from fnmatch import fnmatch

import torch
from torch import nn

from leanbayes.models import VGGLike


def rates(model):
    return [module.p for module in model.modules() if isinstance(module, nn.Dropout)]


def test_variance_layers_are_selected_by_two_names():
    with torch.device("meta"):
        layers = {
            name: module for name, module in VGGLike().named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
        }
    convs = [name for name, module in layers.items() if isinstance(module, nn.Conv2d)]
    assert len(convs) == 13
    assert [name for name in layers if fnmatch(name, "features.block5.conv*")] == convs[-3:]
    assert list(layers)[13:] == ["classifier.dense1", "classifier.dense2"]


def test_dropout_rates_in_order():
    with torch.device("meta"):
        assert rates(VGGLike()) == [0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5, 0.5]
        assert rates(VGGLike(last_dropout=False)) == [0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5, 0.5]
        assert rates(VGGLike(dropout=False)) == []


def test_every_convolution_has_its_norm_and_rectifier():
    with torch.device("meta"):
        block = VGGLike().features.block5
    assert list(dict(block.named_children())) == [
        *("conv1", "norm1", "act1", "drop1"),
        *("conv2", "norm2", "act2", "drop2"),
        *("conv3", "norm3", "act3"),
        "pool",
    ]
