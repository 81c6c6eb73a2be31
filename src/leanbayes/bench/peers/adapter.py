"""What a peer library has to offer to be measured: one shape for all of them."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class NotInstalled(ImportError):
    """A peer library is not there."""


class Task(NamedTuple):
    """What a peer is made from.

    Attributes:
        net: The plain network on the CPU, to be changed at will.
        place: Moves a model to the device, in the layout of the precision.
        x: Inputs ``[B, ...]`` on the device.
        y: Targets ``[B]`` on the device.
        dataset_size: Number of training examples, by which a KL is divided.
    """

    net: nn.Module
    place: Callable[[nn.Module], nn.Module]
    x: Tensor
    y: Tensor
    dataset_size: int


class Adapter(NamedTuple):
    """A network of a peer library.

    Attributes:
        model: The network on the device, in training mode.
        predict: Outputs ``[S, B, classes]`` of S samples for inputs ``[B, ...]``, as the library documents it.
        loss: The training loss for inputs and targets; None for what is not trained.
        mean: Outputs ``[B, classes]`` at the posterior means; None where plain weights cannot be copied in.
    """

    model: nn.Module
    predict: Callable[[Tensor, int], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    mean: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Peer:
    """A method of a peer library.

    Attributes:
        name: Its name in tables.
        package: The distribution that it comes in.
        against: Our contender that it is compared with.
        make: Builds the network.
        same_family: Whether both are of one posterior family, so that their times can be compared.
        channels_last: Whether it can take weights in that layout.
    """

    name: str
    package: str
    against: str
    make: Callable[[Task], Adapter]
    same_family: bool = True
    channels_last: bool = True


def library(name: str) -> Any:
    """A module of a peer library, imported now."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name.partition('.')[0]} cannot be imported ({error})") from None


def version(package: str) -> str | None:
    """The version of a distribution that is installed, None where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def replace_layers(net: nn.Module, makers: Mapping[type[nn.Module], Callable[[Any], nn.Module]]) -> nn.Module:
    """Put another layer in the place of every one of these types; the network is changed.

    Raises:
        ValueError: Where a layer with weights would stay plain: the network would have another posterior than ours.
    """
    for kind in (nn.RNNBase, nn.MultiheadAttention):
        left = [type(module).__name__ for module in net.modules() if isinstance(module, kind)]
        if left and left[0] not in [each.__name__ for each in makers]:
            raise ValueError(f"it has no layer in place of {left[0]}")
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if type(child) in makers:
                setattr(module, name, makers[type(child)](child))
    return net


def loop(model: nn.Module) -> Callable[[Tensor, int], Tensor]:
    """Samples one after the other, which is how most libraries document predictions."""

    def predict(x: Tensor, samples: int) -> Tensor:
        return torch.stack([model(x) for _ in range(samples)])

    return predict


def at_means(model: nn.Module, silence: Callable[[nn.Module], object]) -> Callable[[Tensor], Tensor]:
    """The output of a copy whose noise is silenced, in eval mode."""

    def mean(x: Tensor) -> Tensor:
        quiet = copy.deepcopy(model).eval()
        silence(quiet)
        return quiet(x)

    return mean


def silence_by_name(*fragments: str) -> Callable[[nn.Module], None]:
    """Set the raw standard deviations, by fragments of their parameters' names, to what stands for zero."""

    def silence(model: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if any(fragment in name.rpartition(".")[2] for fragment in fragments):
                    parameter.fill_(-100.0)

    return silence


def copy_weights(source: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Make the weights of a plain layer the means of another."""
    with torch.no_grad():
        weight.copy_(source.weight)
        if bias is not None and source.bias is not None:
            bias.copy_(source.bias)
