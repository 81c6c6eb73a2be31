"""torch-uncertainty: mean-field layers with its ELBO, and BatchEnsemble."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.bench.peers.adapter import Adapter, Task, at_means, copy_weights, library, loop, replace_layers

_MEMBERS = 4


def mean_field(task: Task) -> Adapter:
    """A network of `BayesLinear` and `BayesConv2d`."""
    layers = library("torch_uncertainty.layers")
    losses = library("torch_uncertainty.losses")

    def dense(layer: nn.Linear) -> Any:
        new = layers.BayesLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        copy_weights(layer, new.weight_mu, new.bias_mu)
        return new

    def convolution(layer: nn.Conv2d) -> Any:
        new = layers.BayesConv2d(**_arguments(layer))
        copy_weights(layer, new.weight_mu, new.bias_mu)
        return new

    model = task.place(replace_layers(task.net, {nn.Linear: dense, nn.Conv2d: convolution})).train()
    elbo = losses.ELBOLoss(model, nn.CrossEntropyLoss(), kl_weight=1 / task.dataset_size, num_samples=1)
    return Adapter(model, loop(model), lambda x, y: elbo(x, y).sum(), at_means(model, _freeze))


def batch_ensemble(task: Task) -> Adapter:
    """A BatchEnsemble of four members; each example of a training batch meets one of them."""
    layers = library("torch_uncertainty.layers")
    methods = library("torch_uncertainty.methods")

    def dense(layer: nn.Linear) -> Any:
        new = layers.BatchLinear.from_linear(layer, num_estimators=_MEMBERS)
        copy_weights(layer, new.linear.weight, new.bias)
        return new

    def convolution(layer: nn.Conv2d) -> Any:
        new = layers.BatchConv2d.from_conv2d(layer, num_estimators=_MEMBERS)
        copy_weights(layer, new.conv.weight, new.bias)
        return new

    core = replace_layers(task.net, {nn.Linear: dense, nn.Conv2d: convolution})
    model = task.place(methods.BatchEnsemble(core, num_estimators=_MEMBERS)).train()

    def predict(x: Tensor, samples: int) -> Tensor:
        # In eval mode it runs every member once; more samples would be repetitions.
        return model(x).unflatten(0, (_MEMBERS, -1))

    def mean(x: Tensor) -> Tensor:
        plain = at_means(model, _set_factors_to_one)(x)
        return plain.unflatten(0, (_MEMBERS, -1)).mean(0)

    return Adapter(model, predict, lambda x, y: F.cross_entropy(model(x), y), mean)


def _arguments(layer: nn.Conv2d) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


def _freeze(model: nn.Module) -> None:
    for module in model.modules():
        if (freeze := getattr(module, "freeze", None)) is not None:
            freeze()


def _set_factors_to_one(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("r_group", "s_group")):
                parameter.fill_(1.0)
