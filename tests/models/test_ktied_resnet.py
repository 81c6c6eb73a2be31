"""Blocks of the network that the k-tied Normal paper calls ResNet-18."""

import torch
import torch.nn.functional as F

from leanbayes.models import KTiedResNet
from leanbayes.models.ktied_resnet import ProjectedBlock


def test_shortcut_projects_the_activation():
    torch.manual_seed(0)
    block = ProjectedBlock(4, 4, stride=1).eval()
    x = torch.randn(2, 4, 6, 6)
    scale = (1 + block.norm1.eps) ** -0.5
    a = (x * scale).relu()
    y = F.conv2d(a, block.conv1.weight, block.conv1.bias, padding=1)
    y = F.conv2d((y * scale).relu(), block.conv2.weight, block.conv2.bias, padding=1)
    torch.testing.assert_close(block(x), y + F.conv2d(a, block.shortcut.weight, block.shortcut.bias))


def test_weights_start_at_a_tenth_and_biases_at_zero():
    torch.manual_seed(0)
    model = KTiedResNet()
    weight = model.block4.conv2.weight
    assert abs(weight.std().item() - 0.1) < 4 * 0.1 / (2 * weight.numel()) ** 0.5
    assert not any(bias.any() for name, bias in model.named_parameters() if name.endswith("bias"))


def test_the_width_is_that_of_the_first_block():
    model = KTiedResNet(width=2)
    assert [block.conv2.out_channels for block in (model.block1, model.block2, model.block3, model.block4)] == [
        2,
        4,
        8,
        16,
    ]
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 10)
