"""Activations by name."""

import torch
from torch import Tensor, nn

from leanbayes.models._options import check_choice


class Abs(nn.Module):
    """The absolute value, the even activation of zero-mean variance networks."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps a tensor of any shape to one of the same shape."""
        return torch.abs(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "softplus": nn.Softplus, "abs": Abs}


def activation(name: str, *, option: str = "activation") -> nn.Module:
    """A new activation module; `option` is what an error calls the argument."""
    check_choice(option, name, ACTIVATIONS)
    return ACTIVATIONS[name]()
