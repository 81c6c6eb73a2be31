"""Bounds apply to what they are stated for, and to nothing else."""

import dataclasses

import pytest
import torch

from leanbayes.bench import CONTENDERS
from leanbayes.bench.bounds import STATED, bound, peer_bound, start_up_bound
from leanbayes.bench.networks import network
from leanbayes.bench.peers import PEERS
from leanbayes.bench.setup import Setup

GPU = torch.device("cuda")
STATED_FOR = Setup(network("resnet18"), GPU, "bf16", batch=512, rows=256, repeats=1, round_s=0.0)


def limits(setup, name):
    one = CONTENDERS[name]
    return (
        bound(setup, one, "captured", "step"),
        bound(setup, one, "eager", "step"),
        bound(setup, one, "captured", "predict", 20),
        bound(setup, one, "captured", "memory"),
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("rank1", "batch-ensemble"), (1.15, 1.8, 1.15, 1.15)),
        (("emp", "ecmp"), (1.05, 1.3, 1.10, 1.05)),
        (("k-tied/weight",), (1.10, 1.6, 1.5, 1.15)),
        (("mean-field/weight",), (1.10, 1.6, 1.5, 1.25)),
        (("mean-field", "mean-field/flipout", "k-tied/flipout"), (1.85, 2.4, 1.9, 1.3)),
        (("mean-field/local", "k-tied/local"), (2.05, 2.6, 2.1, 1.6)),
        (("deep-ensemble", "mc-dropout"), (None, None, None, None)),
    ],
)
def test_every_line_has_its_bounds(names, expected):
    assert all(limits(STATED_FOR, name) == expected for name in names)


@pytest.mark.parametrize(
    "other",
    [{"precision": "32"}, {"device": torch.device("cpu")}, {"network": network("lenet5")}, {"batch": 256, "rows": 64}],
    ids=lambda other: next(iter(other)),
)
def test_other_settings_have_none(other):
    assert limits(dataclasses.replace(STATED_FOR, **other), "rank1") == (None, None, None, None)


def test_eager_predictions_and_other_numbers_of_samples_have_none():
    one = CONTENDERS["rank1"]
    assert bound(STATED_FOR, one, "eager", "predict", 20) is None
    assert bound(STATED_FOR, one, "captured", "predict", 100) is None
    assert bound(STATED_FOR, one, "eager", "memory") is None


@pytest.mark.parametrize(
    ("name", "batch", "contender", "expected"),
    [("wrn28-10", 512, "rank1", 1.15), ("wrn28-10", 256, "rank1", None), ("pyramidnet", 256, "emp", 1.1)],
)
def test_large_networks(name, batch, contender, expected):
    setup = dataclasses.replace(STATED_FOR, network=network(name), batch=batch)
    assert bound(setup, CONTENDERS[contender], "captured", "step") == expected
    assert bound(setup, CONTENDERS[contender], "eager", "step") is None


def test_peers_of_the_same_family_are_to_take_twice_as_long():
    limits = {peer.name: peer_bound(STATED_FOR, peer, "captured") for peer in PEERS}
    assert limits["torchbnn"] == 2.0 and limits["laplace-torch, last layer"] is None


def test_peers_are_held_against_what_ours_does_by_default():
    peer = PEERS[0]
    on_cpu = dataclasses.replace(STATED_FOR, device=torch.device("cpu"))
    assert peer_bound(STATED_FOR, peer, "eager") is peer_bound(on_cpu, peer, "captured") is None
    assert peer_bound(STATED_FOR, peer, "captured") == peer_bound(on_cpu, peer, "eager") == 2.0


def test_the_start_of_captured_steps_is_bounded():
    assert start_up_bound(STATED_FOR) == 60.0
    assert start_up_bound(dataclasses.replace(STATED_FOR, network=network("mlp"))) is None


def test_stated_names_are_contenders():
    assert set(STATED) <= CONTENDERS.keys() and {peer.against for peer in PEERS} <= CONTENDERS.keys()
