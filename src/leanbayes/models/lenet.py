"""LeNet-5 as Caffe ships it, the network of the Variance Networks paper on MNIST."""

from torch import nn

from leanbayes.models._activation import activation as make_activation
from leanbayes.models._chain import Chain
from leanbayes.models._options import check_choice, check_dropout, check_positive
from leanbayes.models._registry import register


@register("lenet5")
class LeNet5(Chain):
    """Two 5x5 convolutions of 20 and 50 channels and dense layers of 500 units and the classes; 431,080 parameters.

    Layers are named ``conv1``, ``conv2``, ``dense1``, ``dense2``; each but the last has an activation, and a 2x2 max
    pooling follows each convolution. Weights start uniform in +-1/sqrt(fan_in), which is torch's own choice.

    Args:
        in_channels: Channels of the image.
        image_size: Height and width of the image.
        classes: Units of the output.
        activation: ``"relu"``, ``"tanh"``, ``"softplus"`` or ``"abs"``.
        dense_activation: The activation of ``dense1``; the same as `activation` when None.
        bias: Gives convolutions and dense layers a bias.
        batch_norm: ``"none"``, ``"dense"`` (after ``dense1``, as where all four layers have dropout noise) or ``"all"``
            (after every layer but the last).
        affine: Gives batch normalisation its scale and shift; False together with ``bias=False`` leaves no offsets.
        dropout: Drop probability before ``dense1``; the paper's dropout network has 0.5.

    Shape:
        ``[B, in_channels, image_size, image_size]`` to ``[B, classes]``.

    Example:
        >>> import torch
        >>> LeNet5(batch_norm="dense")(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        classes: int = 10,
        activation: str = "relu",
        dense_activation: str | None = None,
        bias: bool = True,
        batch_norm: str = "none",
        affine: bool = True,
        dropout: float = 0.0,
    ):
        check_positive(in_channels=in_channels, image_size=image_size, classes=classes)
        check_choice("batch_norm", batch_norm, ("none", "dense", "all"))
        check_dropout(dropout)
        if image_size < 16:
            raise ValueError(f"image_size must be at least 16 for two 5x5 convolutions and poolings, not {image_size}")
        side = ((image_size - 4) // 2 - 4) // 2
        layers: dict[str, nn.Module] = {}
        channels = in_channels
        for number, filters in enumerate((20, 50), start=1):
            layers[f"conv{number}"] = nn.Conv2d(channels, filters, 5, bias=bias)
            if batch_norm == "all":
                layers[f"norm{number}"] = nn.BatchNorm2d(filters, affine=affine)
            layers[f"act{number}"] = make_activation(activation)
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            channels = filters
        layers["flatten"] = nn.Flatten()
        if dropout:
            layers["drop"] = nn.Dropout(dropout)
        layers["dense1"] = nn.Linear(channels * side * side, 500, bias=bias)
        if batch_norm != "none":
            layers["norm3"] = nn.BatchNorm1d(500, affine=affine)
        layers["act3"] = make_activation(dense_activation or activation, option="dense_activation")
        layers["dense2"] = nn.Linear(500, classes, bias=bias)
        super().__init__(layers)
