"""Every method is there with every estimator, and those that claim it are the plain network at their means."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import methods
from leanbayes.bench import CONTENDERS, NETWORKS, contender, contenders
from leanbayes.bench.networks import TransformerBlock, network


def test_every_method_is_measured():
    exported = {getattr(lb, name) for name in lb.__all__ if isinstance(getattr(lb, name), type)}
    known = {kind for kind in exported if issubclass(kind, methods.Method) and kind is not methods.Method}
    # The family costs what its members cost.
    assert {type(one.method) for one in CONTENDERS.values()} == known - {lb.Patch}


def test_every_estimator_is_measured():
    named = {name.partition("/")[2] for name in CONTENDERS if name.startswith("k-tied/")}
    assert named == {"local", "flipout", "weight"}
    assert contender("k-tied/weight").method == lb.KTied(estimator="weight")
    assert contender("k-tied").estimator is None and contender("k-tied/weight").estimator == "weight"


def test_calls_are_what_one_writes():
    assert contender("mean-field/local").call == "lb.MeanField(estimator='local')"
    for one in CONTENDERS.values():
        assert eval(one.call, {"lb": lb}) == one.method


@pytest.mark.parametrize("name", [name for name, one in CONTENDERS.items() if one.mean_is_plain])
def test_the_means_are_the_plain_network(name):
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    x = torch.randn(4, 5)
    expected = net(x)
    with lb.sampling(mean=True):
        torch.testing.assert_close(CONTENDERS[name].convert(net)(x), expected)


def test_names_are_taken_once_and_unknown_ones_refused():
    assert [one.name for one in contenders(("emp", "rank1", "emp"))] == ["emp", "rank1"]
    with pytest.raises(ValueError, match="no method 'rank2' to measure; there are rank1, "):
        contenders(("rank2",))
    with pytest.raises(ValueError, match="no network 'alexnet' to measure; there are mlp, "):
        network("alexnet")


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("wrn28-10", "pyramidnet")])
def test_networks_have_the_shapes_that_they_say(name):
    one = NETWORKS[name]
    assert one.build().eval()(torch.zeros(1, *one.shape)).shape == (1, one.classes)


def test_only_names_contenders():
    assert all(set(one.only) <= CONTENDERS.keys() for one in NETWORKS.values())


def test_the_block_attends_over_all_tokens():
    block = TransformerBlock(64, heads=1).eval()
    tokens = torch.randn(1, 5, 64)
    other = tokens.clone()
    other[0, 0] = torch.randn(64)
    assert not torch.allclose(block(tokens), block(other))
