"""The deep-ensemble method; its layer is tested with the other layers."""

import pytest
import torch
from torch import nn

import leanbayes as lb


def test_takes_whole_models_only():
    with pytest.raises(TypeError, match="over whole models"):
        lb.DeepEnsemble().build(nn.Parameter(torch.zeros(2)), None)
    assert lb.DeepEnsemble().bind_prior(torch.zeros(2), 1) is None


def test_divergence_is_the_mean_or_sum_of_the_members():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    ensemble = lb.bayesianize(net, lb.DeepEnsemble(members=3, of=lb.MeanField()))
    members = torch.stack([lb.kl(ensemble.member_module(k)) for k in range(3)])
    assert members.unique().numel() == 3
    torch.testing.assert_close(lb.kl(ensemble), members.mean())
    torch.testing.assert_close(lb.kl(ensemble, mixture="sum"), members.sum())
    torch.testing.assert_close(lb.kl(nn.Sequential(ensemble, nn.ReLU())), members.mean())
