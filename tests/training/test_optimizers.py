"""The optimiser has the groups of `param_groups` and the settings of the configuration."""

import pytest
import torch

import leanbayes as lb
from leanbayes.training.optimizers import make_optimizer
from tests.training.problems import config, network


@pytest.mark.parametrize(
    "name, kind", [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_groups(name, kind):
    settings = config(optimizer=name, lr=0.1, variational_lr=0.3, weight_decay=0.01)
    optimizer = make_optimizer(network(lb.MeanField()), settings)
    assert type(optimizer) is kind
    groups = {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert groups == {"points": (0.1, 0.01), "means": (0.1, 0.0), "variational": (0.3, 0.0)}


def test_momentum():
    group = make_optimizer(network(), config(optimizer="sgd", momentum=0.8, nesterov=True)).param_groups[0]
    assert (group["momentum"], group["nesterov"]) == (0.8, True)


def test_nothing_to_train():
    with pytest.raises(ValueError, match="no trainable parameter"):
        make_optimizer(network().requires_grad_(False), config())
