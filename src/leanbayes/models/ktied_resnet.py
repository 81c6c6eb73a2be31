"""The residual network that the k-tied Normal paper calls ResNet-18."""

import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.models._init import init_normal_
from leanbayes.models._options import check_positive
from leanbayes.models._registry import register


class ProjectedBlock(nn.Module):
    """Norm, ReLU and 3x3 convolution, twice, around a 1x1 projection of the first activation."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, channels, H, W]`` to ``[B, width, H / stride, W / stride]``."""
        x = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(x))))
        return y + self.shortcut(x)


@register("ktied_resnet")
class KTiedResNet(nn.Module):
    """A 3x3 stem and four pre-activation blocks of 64, 128, 256 and 512 channels; 4,908,490 parameters.

    Every block projects its shortcut and every convolution has a bias. Weights start from N(0, 0.1^2) and biases at
    zero, as there. The published count of the mean-field network, 9,814,026, adds a standard deviation for each of the
    4,901,568 kernel weights and counts the 3,968 moving statistics of batch normalisation.

    Args:
        in_channels: Channels of the image.
        classes: Units of the output.
        width: Channels of the stem and the first block; each further block has twice as many.

    Shape:
        ``[B, in_channels, H, W]`` to ``[B, classes]``.

    Example:
        >>> import torch
        >>> KTiedResNet().eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def __init__(self, in_channels: int = 3, classes: int = 10, width: int = 64):
        check_positive(in_channels=in_channels, classes=classes, width=width)
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.block1 = ProjectedBlock(width, width, stride=1)
        self.block2 = ProjectedBlock(width, 2 * width, stride=2)
        self.block3 = ProjectedBlock(2 * width, 4 * width, stride=2)
        self.block4 = ProjectedBlock(4 * width, 8 * width, stride=2)
        self.norm = nn.BatchNorm2d(8 * width)
        self.fc = nn.Linear(8 * width, classes)
        init_normal_(self, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        x = self.block4(self.block3(self.block2(self.block1(self.conv1(x)))))
        return self.fc(F.relu(self.norm(x)).mean(dim=(2, 3)))
