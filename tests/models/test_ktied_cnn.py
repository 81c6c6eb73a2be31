"""The k-tied Normal paper's convolutional network against functional calls."""

import torch
import torch.nn.functional as F

from leanbayes.models import KTiedCNN


def test_forward_against_functional_calls():
    torch.manual_seed(0)
    model = KTiedCNN()
    x = torch.rand(2, 3, 32, 32)
    y = F.max_pool2d(F.conv2d(x, model.conv1.weight, model.conv1.bias, padding=2).relu(), 2)
    y = F.max_pool2d(F.conv2d(y, model.conv2.weight, model.conv2.bias, padding=2).relu(), 2)
    y = F.linear(y.flatten(1), model.dense1.weight, model.dense1.bias).relu()
    torch.testing.assert_close(model(x), F.linear(y, model.dense2.weight, model.dense2.bias))
