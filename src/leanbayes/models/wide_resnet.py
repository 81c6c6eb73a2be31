"""Wide residual networks (Zagoruyko and Komodakis, 2016), the CIFAR network of the Rank-1 BNN paper."""

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.models._init import init_he_
from leanbayes.models._options import check_dropout, check_positive
from leanbayes.models._registry import register


class WideBlock(nn.Module):
    """Norm, ReLU and 3x3 convolution, twice; the shortcut takes the block's input as it came."""

    def __init__(self, channels: int, width: int, stride: int, dropout: float):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(dropout) if dropout else None
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = stride == 1 and channels == width
        self.shortcut = None if same else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, channels, H, W]`` to ``[B, width, H / stride, W / stride]``."""
        y = self.conv1(F.relu(self.norm1(x)))
        y = F.relu(self.norm2(y))
        y = self.conv2(y if self.drop is None else self.drop(y))
        return y + (x if self.shortcut is None else self.shortcut(x))


@register("wide_resnet")
class WideResNet(nn.Module):
    """A wide residual network; the defaults are WRN-28-10, 36,479,194 parameters with ten classes.

    Args:
        depth: Layers, 6 n + 4 for n blocks in each of the three groups.
        width: Factor on the channels 16, 32 and 64 of the groups.
        in_channels: Channels of the image.
        classes: Units of the output.
        dropout: Drop probability between the two convolutions of a block; no layer when 0.

    Shape:
        ``[B, in_channels, H, W]`` to ``[B, classes]``.

    Example:
        >>> import torch
        >>> WideResNet(depth=10, width=1).eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def __init__(self, depth: int = 28, width: int = 10, in_channels: int = 3, classes: int = 10, dropout: float = 0.0):
        check_positive(depth=depth, width=width, in_channels=in_channels, classes=classes)
        check_dropout(dropout)
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 10, 16, 22, 28 or another 6 n + 4, not {depth}")
        super().__init__()
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.group1 = _group(16, 16 * width, blocks, 1, dropout)
        self.group2 = _group(16 * width, 32 * width, blocks, 2, dropout)
        self.group3 = _group(32 * width, 64 * width, blocks, 2, dropout)
        self.norm = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, classes)
        init_he_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        x = self.group3(self.group2(self.group1(self.conv1(x))))
        return self.fc(F.relu(self.norm(x)).mean(dim=(2, 3)))


def _group(channels: int, width: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = WideBlock(channels, width, stride, dropout)
    return nn.Sequential(first, *(WideBlock(width, width, 1, dropout) for _ in range(blocks - 1)))
