"""PyramidNet (Han et al., 2017), the CIFAR-100 network of the Ensemble Model Patching paper."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.models._init import init_he_
from leanbayes.models._options import check_positive
from leanbayes.models._registry import register


class PyramidBlock(nn.Module):
    """Two 3x3 convolutions between three norms; the shortcut has no parameters.

    Where the stride is 2 the shortcut averages 2x2 positions, and channels that the input lacks are zero.
    """

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.pool = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.new_channels = width - channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, channels, H, W]`` to ``[B, width, H / stride, W / stride]``."""
        y = self.conv1(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(y)))
        return self.norm3(y) + F.pad(self.pool(x), (0, 0, 0, 0, 0, self.new_channels))


@register("pyramidnet")
class PyramidNet(nn.Module):
    """A network of basic blocks whose width grows evenly; 28,511,307 parameters by default.

    With n blocks in each of the three groups, block i of 3 n has round(16 + i * alpha / (3 n)) channels. There is no
    bottleneck. The defaults, depth 110 and alpha 270, make 18 blocks a group, each 5 channels wider, up to 286.

    Args:
        depth: Layers, 6 n + 2 for n blocks in each group.
        alpha: Channels that the last block has over the 16 of the stem.
        in_channels: Channels of the image.
        classes: Units of the output.

    Shape:
        ``[B, in_channels, H, W]`` to ``[B, classes]``.

    Example:
        >>> import torch
        >>> PyramidNet(depth=8, alpha=9).eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 100])
    """

    def __init__(self, depth: int = 110, alpha: int = 270, in_channels: int = 3, classes: int = 100):
        check_positive(depth=depth, alpha=alpha, in_channels=in_channels, classes=classes)
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 8, 14, 20, 110 or another 6 n + 2, not {depth}")
        super().__init__()
        blocks = (depth - 2) // 6
        widths = [round(16 + index * alpha / (3 * blocks)) for index in range(3 * blocks + 1)]
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.group1 = _group(widths[: blocks + 1], stride=1)
        self.group2 = _group(widths[blocks : 2 * blocks + 1], stride=2)
        self.group3 = _group(widths[2 * blocks :], stride=2)
        self.norm2 = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)
        init_he_(self, mode="fan_out")
        # A fan-out start suits convolutions; with few classes it would make the logits large.
        self.fc.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        x = self.norm1(self.conv1(x))
        x = self.group3(self.group2(self.group1(x)))
        return self.fc(F.relu(self.norm2(x)).mean(dim=(2, 3)))


def _group(widths: list[int], stride: int) -> nn.Sequential:
    """The blocks between successive widths; the first has the stride."""
    steps = enumerate(pairwise(widths))
    return nn.Sequential(*(PyramidBlock(old, new, 1 if index else stride) for index, (old, new) in steps))
