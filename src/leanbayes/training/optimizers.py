"""The optimiser of a configuration."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from leanbayes.convert import param_groups
from leanbayes.training.config import TrainConfig


def make_optimizer(module: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimiser of all trainable parameters of a model or an `ELBO`, with the groups of `param_groups`."""
    groups = param_groups(module, config.lr, config.weight_decay, config.variational_lr)
    if not groups:
        raise ValueError("the model has no trainable parameters; unfreeze some")
    # One kernel for a step, where all parameters are on a device that has it.
    kinds = {p.device.type if p.is_floating_point() else "none" for group in groups for p in group["params"]}
    fused = kinds in ({"cuda"}, {"cpu"}) or None
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    capturable = kinds == {"cuda"} and bool(config.cuda_graph)
    return kind(groups, lr=config.lr, betas=config.betas, fused=fused, capturable=capturable)
