"""blitz: layers in place of torch's, and a decorator that adds the objective to the network's class."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leanbayes.bench.peers.adapter import Adapter, Task, at_means, copy_weights, library, loop, replace_layers


def make(task: Task) -> Adapter:
    """A network of Bayesian dense, convolutional and recurrent layers."""
    modules = library("blitz.modules")
    utils = library("blitz.utils")

    def dense(layer: nn.Linear) -> Any:
        new = modules.BayesianLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        return _with_weights(layer, new)

    def convolution(layer: nn.Conv2d) -> Any:
        new = modules.BayesianConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            groups=layer.groups,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            bias=layer.bias is not None,
        )
        return _with_weights(layer, new)

    recurrent = any(isinstance(module, nn.LSTM) for module in task.net.modules())
    makers = {
        nn.Linear: dense,
        nn.Conv2d: convolution,
        nn.LSTM: lambda layer: modules.BayesianLSTM(layer.input_size, layer.hidden_size),
    }
    net = replace_layers(task.net, makers)
    # The decorator changes the class that it is given: one of its own, so that other networks do not change.
    net.__class__ = utils.variational_estimator(type(type(net).__name__, (type(net),), {}))
    model: Any = task.place(net).train()
    criterion = nn.CrossEntropyLoss()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = 1 / task.dataset_size
        return model.sample_elbo(inputs=x, labels=y, criterion=criterion, sample_nbr=1, complexity_cost_weight=weight)

    return Adapter(model, loop(model), loss, None if recurrent else at_means(model, lambda quiet: quiet.freeze_()))  # pyright: ignore


def _with_weights(layer: Any, new: Any) -> Any:
    copy_weights(layer, new.weight_mu, new.bias_mu if new.bias else None)
    return new
