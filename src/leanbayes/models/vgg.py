"""The VGG-like network of the Variance Networks paper on CIFAR."""

from collections import OrderedDict

from torch import nn

from leanbayes.models._activation import activation
from leanbayes.models._chain import Chain
from leanbayes.models._options import check_positive
from leanbayes.models._registry import register

# Channels of a block's convolutions and the drop probability between them.
_BLOCKS = (((64, 64), 0.3), ((128, 128), 0.4), ((256,) * 3, 0.4), ((512,) * 3, 0.4), ((512,) * 3, 0.4))


@register("vgg_like")
class VGGLike(Chain):
    """Thirteen 3x3 convolutions in five blocks and two dense layers; 14,991,946 parameters with ten classes.

    Convolution, batch normalisation and ReLU throughout, dropout between the convolutions of a block and around the
    first dense layer, a 2x2 max pooling after each block. The variance network gives ``features.block5.conv*`` and
    ``classifier.dense1`` a shared log alpha each and so has four parameters more.

    Args:
        in_channels: Channels of the image.
        classes: Units of the output.
        dropout: Puts dropout layers in; False leaves all of them out.
        last_dropout: Puts them between the convolutions of block 5 as well; the variance network has none there.
        dense_activation: The activation of ``classifier.dense1``: ``"relu"``, ``"tanh"``, ``"softplus"`` or ``"abs"``.

    Shape:
        ``[B, in_channels, H, W]`` to ``[B, classes]``, H and W at least 32; larger maps are averaged over positions.

    Example:
        >>> import torch
        >>> VGGLike().eval()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """

    def __init__(
        self,
        in_channels: int = 3,
        classes: int = 10,
        dropout: bool = True,
        last_dropout: bool = True,
        dense_activation: str = "relu",
    ):
        check_positive(in_channels=in_channels, classes=classes)
        blocks: dict[str, nn.Module] = {}
        channels = in_channels
        for number, (filters, rate) in enumerate(_BLOCKS, start=1):
            keeps = dropout and (last_dropout or number < len(_BLOCKS))
            blocks[f"block{number}"] = _block(channels, filters, rate if keeps else None)
            channels = filters[-1]
        super().__init__(
            {
                "features": nn.Sequential(OrderedDict(blocks)),
                "pool": nn.AdaptiveAvgPool2d(1),
                "flatten": nn.Flatten(),
                "classifier": _classifier(channels, classes, dropout, dense_activation),
            }
        )


def _block(channels: int, filters: tuple[int, ...], rate: float | None) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    for number, width in enumerate(filters, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1)
        layers[f"norm{number}"] = nn.BatchNorm2d(width)
        layers[f"act{number}"] = nn.ReLU()
        if rate is not None and number < len(filters):
            layers[f"drop{number}"] = nn.Dropout(rate)
        channels = width
    layers["pool"] = nn.MaxPool2d(2)
    return nn.Sequential(OrderedDict(layers))


def _classifier(features: int, classes: int, dropout: bool, dense_activation: str) -> nn.Sequential:
    layers: dict[str, nn.Module] = {"drop1": nn.Dropout(0.5)} if dropout else {}
    layers["dense1"] = nn.Linear(features, 512)
    layers["norm1"] = nn.BatchNorm1d(512)
    layers["act1"] = activation(dense_activation, option="dense_activation")
    if dropout:
        layers["drop2"] = nn.Dropout(0.5)
    layers["dense2"] = nn.Linear(512, classes)
    return nn.Sequential(OrderedDict(layers))
