"""The CIFAR-100 convolutional network of the k-tied Normal paper."""

from torch import nn

from leanbayes.models._chain import Chain
from leanbayes.models._init import init_he_
from leanbayes.models._options import check_positive
from leanbayes.models._registry import register


@register("ktied_cnn")
class KTiedCNN(Chain):
    """Two 5x5 convolutions of 32 and 64 channels and dense layers of 512 units and the classes; 2,202,660 parameters.

    Convolutions keep the size, a 2x2 max pooling follows each, and every layer but the last has a ReLU. The paper says
    3x3; its parameter counts say 5x5, padded and pooled. Layers are named ``conv1``, ``conv2``, ``dense1``, ``dense2``.

    Args:
        in_channels: Channels of the image.
        image_size: Height and width of the image.
        classes: Units of the output.

    Shape:
        ``[B, in_channels, image_size, image_size]`` to ``[B, classes]``.

    Example:
        >>> import torch
        >>> KTiedCNN()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, classes: int = 100):
        check_positive(in_channels=in_channels, image_size=image_size, classes=classes)
        if image_size < 4:
            raise ValueError(f"image_size must be at least 4 for two 2x2 poolings, not {image_size}")
        super().__init__(
            {
                "conv1": nn.Conv2d(in_channels, 32, 5, padding=2),
                "act1": nn.ReLU(),
                "pool1": nn.MaxPool2d(2),
                "conv2": nn.Conv2d(32, 64, 5, padding=2),
                "act2": nn.ReLU(),
                "pool2": nn.MaxPool2d(2),
                "flatten": nn.Flatten(),
                "dense1": nn.Linear(64 * (image_size // 4) ** 2, 512),
                "act3": nn.ReLU(),
                "dense2": nn.Linear(512, classes),
            }
        )
        init_he_(self)
