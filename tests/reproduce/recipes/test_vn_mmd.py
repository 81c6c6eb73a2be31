"""What dropping the means does to predictions."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import mmd_bound
from leanbayes.reproduce.recipes import vn_mmd


def model(log_alpha):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return lb.bayesianize(net, lb.VariationalDropout(init_log_alpha=log_alpha), where=lb.named("0"))


def test_a_layer_without_means_changes_nothing():
    net = lb.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), lb.VarianceLayer())
    change, excess = vn_mmd._change(net, torch.randn(6, 3), 50, exact=0.0)
    assert change == 0 and excess == 0


def test_the_change_is_within_half_of_the_distance():
    x = torch.randn(30, 3)
    changes = []
    for log_alpha in (-2.0, 2.0, 6.0):
        net = model(log_alpha)
        exact = mmd_bound(net)["0"].exact
        change, excess = vn_mmd._change(net, x, 500, exact)
        changes.append(change)
        assert excess < 5
        # A distance that is too small is seen.
        assert vn_mmd._change(net, x, 500, exact / 100)[1] > 5
    assert changes == sorted(changes, reverse=True)


def test_the_checks_see_what_is_wrong():
    good = {"exact": 1.9, "bound": 3.0, "vacuous": True, "excess": 0.0}
    assert all(check([good]).holds for check in (vn_mmd._check_bound, vn_mmd._check_vacuous, vn_mmd._check_change))
    assert not vn_mmd._check_bound([good | {"bound": 1.0}]).holds
    assert not vn_mmd._check_vacuous([good | {"vacuous": False}]).holds
    assert not vn_mmd._check_change([good | {"excess": 9.0}]).holds
