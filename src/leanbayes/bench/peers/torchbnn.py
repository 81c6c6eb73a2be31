"""torchbnn: layers in place of torch's, and a module that sums their KL."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from leanbayes.bench.peers.adapter import (
    Adapter,
    Task,
    at_means,
    copy_weights,
    library,
    loop,
    replace_layers,
    silence_by_name,
)

_PRIOR: dict[str, float] = {"prior_mu": 0.0, "prior_sigma": 0.1}


def make(task: Task) -> Adapter:
    """A network of Bayesian dense and convolutional layers."""
    torchbnn = library("torchbnn")

    def dense(layer: nn.Linear) -> Any:
        bias = layer.bias is not None
        new = torchbnn.BayesLinear(
            **_PRIOR, in_features=layer.in_features, out_features=layer.out_features, bias=bias
        )  # fmt: skip
        return _with_weights(layer, new)

    def convolution(layer: nn.Conv2d) -> Any:
        new = torchbnn.BayesConv2d(
            **_PRIOR,
            in_channels=layer.in_channels,
            out_channels=layer.out_channels,
            kernel_size=layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
        )
        return _with_weights(layer, new)

    model = task.place(replace_layers(task.net, {nn.Linear: dense, nn.Conv2d: convolution})).train()
    divergence = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)
    return Adapter(
        model,
        loop(model),
        lambda x, y: (F.cross_entropy(model(x), y) + divergence(model) / task.dataset_size).sum(),
        at_means(model, silence_by_name("log_sigma")),
    )


def _with_weights(layer: Any, new: Any) -> Any:
    copy_weights(layer, new.weight_mu, new.bias_mu)
    return new
