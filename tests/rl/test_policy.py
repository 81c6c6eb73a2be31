"""The policies: one network, with noise in its second hidden layer."""

import pytest
import torch

import leanbayes as lb
from leanbayes.nn import BayesianLayer
from leanbayes.rl import POLICIES, make_policy


@pytest.mark.parametrize("kind", POLICIES)
def test_only_the_second_hidden_layer_is_random(kind):
    network = make_policy(kind, 4, 2)
    random = [name for name, module in network.named_modules() if isinstance(module, BayesianLayer)]
    assert random == ([] if kind == "plain" else ["dense2"])
    assert [network.get_submodule(name).out_features for name in ("dense1", "dense2", "output")] == [256, 256, 2]


def test_all_kinds_start_from_the_same_weights():
    plain, noisy, variance = (make_policy(kind, 4, 2, seed=3) for kind in POLICIES)
    x = torch.randn(5, 4)
    with lb.sampling(mean=True):
        assert torch.equal(noisy(x), plain(x))
    assert torch.equal(variance.dense2.weight.posterior.std(), plain.dense2.weight.abs())
    assert not torch.equal(make_policy("plain", 4, 2, seed=4).dense1.weight, plain.dense1.weight)


def test_a_method_may_be_given():
    assert make_policy(lb.Rank1(), 4, 2, hidden=(8, 8, 8)).dense2.method == lb.Rank1()


def test_what_is_not_there_is_named():
    with pytest.raises(ValueError, match="no policy 'noise'; the policies are plain, noisy, variance"):
        make_policy("noise", 4, 2)
    with pytest.raises(ValueError, match=r"make_policy got hidden=\(8,\)"):
        make_policy("plain", 4, 2, hidden=(8,))
