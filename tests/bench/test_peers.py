"""Each library that is installed passes the gate and trains; none of them is needed for the rest."""

import pytest
import torch
from torch import nn

from leanbayes.bench.gate import check_peer, check_step
from leanbayes.bench.networks import Network
from leanbayes.bench.peers import PEERS, NotInstalled, version
from leanbayes.bench.peers.adapter import replace_layers
from leanbayes.bench.rivals import make_peer
from leanbayes.bench.setup import Setup
from leanbayes.bench.steps import hand_written_step


def small() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.ReLU())
    return nn.Sequential(body, nn.Flatten(), nn.Linear(4 * 6 * 6, 3))


SETUP = Setup(
    Network("small", "A small network", small, (2, 6, 6), 3, True, {"cpu": 4}, {"cpu": 2}),
    torch.device("cpu"), "32", batch=4, rows=2, repeats=1, round_s=0.0,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_right_and_trains(peer):
    if version(peer.package) is None:
        pytest.skip(f"{peer.package} is not installed")
    check_peer(SETUP, make_peer(SETUP, peer))
    adapter = make_peer(SETUP, peer)
    if adapter.loss is not None:
        step = hand_written_step(SETUP, adapter.model.train(), adapter.loss)
        check_step(step.run, step.model)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_library_that_is_missing_says_so(peer, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("leanbayes.bench.peers.adapter.importlib.import_module", missing)
    with pytest.raises(NotInstalled, match=r"cannot be imported \(No module named"):
        make_peer(SETUP, peer)


def test_nested_layers_are_replaced():
    net = replace_layers(small(), {nn.Conv2d: lambda layer: nn.Identity(), nn.Linear: lambda layer: nn.Identity()})
    assert [type(module) for module in net.modules() if not list(module.children())] == [
        nn.Identity, nn.ReLU, nn.Flatten, nn.Identity,
    ]  # fmt: skip


def test_a_network_that_would_stay_partly_plain_is_refused():
    net = nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="it has no layer in place of LSTM"):
        replace_layers(net, {nn.Linear: lambda layer: nn.Identity()})
    assert isinstance(net[1], nn.Linear)
    replace_layers(net, {nn.Linear: lambda layer: nn.Identity(), nn.LSTM: lambda layer: nn.Identity()})
