"""Widths and shortcuts of PyramidNet."""

import torch
import torch.nn.functional as F

from leanbayes.models import PyramidNet
from leanbayes.models.pyramidnet import PyramidBlock


def test_width_grows_by_five_in_every_block():
    with torch.device("meta"):
        model = PyramidNet()
    blocks = [*model.group1, *model.group2, *model.group3]
    assert [block.conv2.out_channels for block in blocks] == list(range(21, 287, 5))
    assert [index for index, block in enumerate(blocks) if block.conv1.stride == (2, 2)] == [18, 36]


def test_growth_that_is_not_whole_is_rounded():
    with torch.device("meta"):
        model = PyramidNet(depth=8, alpha=10)
    widths = [block.conv2.out_channels for group in (model.group1, model.group2, model.group3) for block in group]
    assert widths == [19, 23, 26]


def test_shortcut_pads_channels_with_zeros():
    block = PyramidBlock(3, 5, stride=1)
    x = torch.randn(2, 3, 4, 4)
    torch.nn.init.zeros_(block.norm3.weight)
    y = block(x)
    assert torch.equal(y[:, :3], x)
    assert not y[:, 3:].any()


def test_shortcut_averages_where_the_stride_is_two():
    block = PyramidBlock(3, 5, stride=2)
    torch.nn.init.zeros_(block.norm3.weight)
    for size in (4, 5):
        x = torch.randn(2, 3, size, size)
        y = block(x)
        assert y.shape == (2, 5, (size + 1) // 2, (size + 1) // 2)
        torch.testing.assert_close(y[:, :3, :2, :2], F.avg_pool2d(x[:, :, :4, :4], 2))


def test_first_convolution_sees_no_rectifier():
    torch.manual_seed(0)
    block = PyramidBlock(3, 3, stride=1).eval()
    x = torch.randn(2, 3, 4, 4)
    scale = (1 + block.norm1.eps) ** -0.5
    y = F.conv2d(x * scale, block.conv1.weight, padding=1)
    y = F.conv2d((y * scale).relu(), block.conv2.weight, padding=1) * scale
    torch.testing.assert_close(block(x), x + y)
