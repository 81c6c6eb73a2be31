"""Training patches and shared weights in turns."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import Alternate, TrainConfig, fit

CONFIG = TrainConfig(epochs=1, batch_size=16, lr=0.05, weight_decay=0.1, optimizer="adamw", device="cpu")


def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return lb.bayesianize(net, lb.EMP(2)), (torch.randn(48, 4), torch.randint(3, (48,)))


def values(model, patches):
    return {n: p.detach().clone() for n, p in model.named_parameters() if ("copies" in n) == patches}


class Snapshots:
    def __init__(self):
        self.seen = []

    def __call__(self, event):
        self.seen.append((values(event.model, True), values(event.model, False)))


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_half_that_does_not_train_keeps_every_bit(optimizer):
    model, data = problem()
    before = (values(model, True), values(model, False))
    seen = Snapshots()
    config = replace(CONFIG, epochs=6, optimizer=optimizer)
    history = fit(model, data, config, callbacks=[seen, Alternate(patches=1, shared=2)])
    assert history["trains"] == ["patches", "shared", "shared"] * 2
    for trains, old, new in zip(history["trains"], [before, *seen.seen], seen.seen):
        moves, stays = (0, 1) if trains == "patches" else (1, 0)
        assert all(torch.equal(value, new[stays][name]) for name, value in old[stays].items())
        assert all(not torch.equal(value, new[moves][name]) for name, value in old[moves].items())
    assert all(p.requires_grad for p in model.parameters())


def test_a_run_that_is_continued_is_in_the_same_phase(tmp_path):
    whole, data = problem()
    parts = copy.deepcopy(whole)
    config = replace(CONFIG, epochs=4)
    fit(whole, data, config, callbacks=[Alternate(shared=2)])

    def stop(event):
        return event.record["epoch"] == 2

    fit(parts, data, config, out=tmp_path, callbacks=[Alternate(shared=2), stop])
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    state["stopped"] = None
    torch.save(state, tmp_path / "last.pt")
    history = fit(parts, data, config, out=tmp_path, resume=True, callbacks=[Alternate(shared=2)])
    assert history["trains"] == ["patches", "shared", "shared", "patches"]
    for one, other in zip(whole.parameters(), parts.parameters()):
        assert torch.equal(one, other)


def test_a_model_without_two_halves_is_refused():
    net = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="no patches to train in turn;"):
        fit(net, (torch.randn(8, 4), torch.randint(3, (8,))), CONFIG, callbacks=[Alternate()])


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="Alternate trains in one process"):
        Alternate().begin(problem()[0], 0)


@pytest.mark.parametrize("options", [{"patches": 0}, {"shared": 1.5}, {"first": "both"}])
def test_other_settings_are_refused(options):
    with pytest.raises(ValueError, match="Alternate"):
        Alternate(**options)
