"""The multilayer perceptron."""

from collections.abc import Sequence

from torch import nn

from leanbayes.models._activation import activation as make_activation
from leanbayes.models._chain import Chain
from leanbayes.models._init import init_he_
from leanbayes.models._options import check_positive, check_widths
from leanbayes.models._registry import register


@register("mlp")
class MLP(Chain):
    """Dense layers, each with an activation but the last; inputs of any shape are flattened.

    The defaults are the MNIST network 784-400-400-10 of the k-tied Normal paper, 478,410 parameters. The network whose
    patches the Ensemble Model Patching paper counts has 100 layers of 100 units with batch normalisation and no output
    bias: ``MLP(100, [100] * 99, 100, batch_norm=True, output_bias=False)``.

    Layers are named ``dense1``, ``norm1``, ``act1``, ..., ``output``.

    Args:
        in_features: Features of an example, all dimensions together.
        hidden: Units of the hidden layers; empty for a linear model.
        classes: Units of the output.
        activation: ``"relu"``, ``"tanh"``, ``"softplus"`` or ``"abs"``.
        batch_norm: Normalises between each hidden layer and its activation.
        input_norm: Normalises the input as well.
        output_bias: Gives the output layer a bias.

    Shape:
        ``[B, *]`` with `in_features` elements per example to ``[B, classes]``.

    Example:
        >>> import torch
        >>> MLP()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int = 784,
        hidden: Sequence[int] = (400, 400),
        classes: int = 10,
        activation: str = "relu",
        batch_norm: bool = False,
        input_norm: bool = False,
        output_bias: bool = True,
    ):
        check_positive(in_features=in_features, classes=classes)
        check_widths(hidden=hidden)
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        if input_norm:
            layers["norm0"] = nn.BatchNorm1d(in_features)
        width = in_features
        for number, units in enumerate(hidden, start=1):
            layers[f"dense{number}"] = nn.Linear(width, units)
            if batch_norm:
                layers[f"norm{number}"] = nn.BatchNorm1d(units)
            layers[f"act{number}"] = make_activation(activation)
            width = units
        layers["output"] = nn.Linear(width, classes, bias=output_bias)
        super().__init__(layers)
        init_he_(self)
