"""A variance network that is right by construction, and its data."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.models._activation import Abs

CLASSES = 4


def variance_network(width=8):
    """Classes are groups of inputs: the hidden unit of a group has standard deviation 5, the others 0.01.

    The output reads absolute values, so that the mean says nothing and the largest deviation is the class.
    """
    net = nn.Sequential(nn.Linear(CLASSES * width, CLASSES), Abs(), nn.Linear(CLASSES, CLASSES))
    with torch.no_grad():
        net[0].weight.copy_(0.01 + 5 * torch.eye(CLASSES).repeat_interleave(width, 1))
        net[0].bias.zero_()
        net[2].weight.copy_(10 * torch.eye(CLASSES))
        net[2].bias.zero_()
    return lb.bayesianize(net, lb.VarianceLayer(), where=lb.named("0"))


def groups(examples=200, width=8, seed=0):
    """Inputs of which one group of features is not zero, and which one."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (examples,), generator=generator)
    values = torch.randn(examples, CLASSES, width, generator=generator)
    return (values * nn.functional.one_hot(y, CLASSES).unsqueeze(2)).flatten(1), y
