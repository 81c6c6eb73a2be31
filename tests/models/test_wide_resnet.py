"""Blocks of wide residual networks."""

import torch
import torch.nn.functional as F

from leanbayes.models import WideResNet
from leanbayes.models.wide_resnet import WideBlock


def test_block_with_a_projection_takes_its_input_unnormalised():
    torch.manual_seed(0)
    block = WideBlock(4, 6, stride=2, dropout=0.0)
    x = torch.randn(3, 4, 8, 8)
    with torch.no_grad():
        block.conv2.weight.zero_()
        torch.testing.assert_close(block(x), F.conv2d(x, block.shortcut.weight, stride=2))


def test_block_without_a_projection_passes_its_input():
    block = WideBlock(4, 4, stride=1, dropout=0.0)
    x = torch.randn(3, 4, 8, 8)
    with torch.no_grad():
        block.conv2.weight.zero_()
        assert torch.equal(block(x), x)


def test_residual_branch_in_eval_mode():
    torch.manual_seed(0)
    block = WideBlock(4, 4, stride=1, dropout=0.3).eval()
    x = torch.randn(3, 4, 8, 8)
    scale = (1 + block.norm1.eps) ** -0.5
    y = F.conv2d((x * scale).relu(), block.conv1.weight, padding=1)
    y = F.conv2d((y * scale).relu(), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), x + y)


def test_depth_and_width_of_wrn_28_10():
    with torch.device("meta"):
        model = WideResNet()
    assert [len(group) for group in (model.group1, model.group2, model.group3)] == [4, 4, 4]
    assert [group[-1].conv2.out_channels for group in (model.group1, model.group2, model.group3)] == [160, 320, 640]
    convs = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert sum(conv.kernel_size == (3, 3) for conv in convs) == 25
    assert sum(conv.kernel_size == (1, 1) for conv in convs) == 3
