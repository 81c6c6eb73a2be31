"""ResNet-18 and ResNet-50 (He et al., 2016), with torchvision's parameter names."""

from collections.abc import Sequence
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.models._options import check_choice, check_positive, check_widths
from leanbayes.models._registry import register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, channels, H, W]`` to ``[B, width, H / stride, W / stride]``."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, around a shortcut; the stride is in the 3x3."""

    expansion: ClassVar[int] = 4

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _projection(channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, channels, H, W]`` to ``[B, 4 * width, H / stride, W / stride]``."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A residual network of four groups of blocks, whose state dict is torchvision's.

    Args:
        block: :class:`BasicBlock` or :class:`Bottleneck`.
        depths: Blocks of each of the four groups.
        in_channels: Channels of the image.
        classes: Units of the output.
        stem: ``"imagenet"``, a 7x7 convolution of stride 2 and a max pooling, or ``"cifar"``, a 3x3 convolution alone.

    Shape:
        ``[B, in_channels, H, W]`` to ``[B, classes]``.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        in_channels: int = 3,
        classes: int = 1000,
        stem: str = "imagenet",
    ):
        check_positive(in_channels=in_channels, classes=classes)
        check_choice("stem", stem, ("imagenet", "cifar"))
        check_widths(depths=depths)
        if len(depths) != 4:
            raise ValueError(f"depths must give the blocks of four groups, not {depths!r}")
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.layer1 = _group(block, 64, 64, depths[0], stride=1)
        self.layer2 = _group(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _group(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _group(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


@register("resnet18")
def resnet18(in_channels: int = 3, classes: int = 1000, stem: str = "imagenet") -> ResNet:
    """ResNet-18; 11,689,512 parameters with 1000 classes. Arguments as of :class:`ResNet`.

    Example:
        >>> import torch
        >>> resnet18(classes=10, stem="cifar").eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), in_channels, classes, stem)


@register("resnet50")
def resnet50(in_channels: int = 3, classes: int = 1000, stem: str = "imagenet") -> ResNet:
    """ResNet-50; 25,557,032 parameters with 1000 classes. Arguments as of :class:`ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), in_channels, classes, stem)


def _group(
    block: type[BasicBlock] | type[Bottleneck], channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    first = block(channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def _projection(channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """The shortcut where the shape changes; None where the input itself will do."""
    if stride == 1 and channels == out_channels:
        return None
    return nn.Sequential(nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))
