"""Replicas: copies of a module's objects that share its tensors."""

import functools
import threading

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._modes import eval_mode
from leanbayes.nn._replica import call_leaf, call_with, is_compiled, original, replica
from tests.networks import NETWORKS, build


@pytest.mark.parametrize("name", NETWORKS)
def test_a_replica_gives_the_same_bits(name):
    plain, inputs = build(name)
    with torch.no_grad():
        copied = replica(plain)
        assert torch.equal(copied(*inputs), plain(*inputs))
    assert all(a is b for a, b in zip(copied.parameters(), plain.parameters(), strict=True))
    assert not {id(m) for m in copied.modules()} & {id(m) for m in plain.modules()}


@pytest.mark.parametrize("name", ["mlp", "lstm", "transformer", "gpt2"])
def test_other_values_do_not_show_in_the_module(name):
    plain, inputs = build(name if name in NETWORKS else next(iter(NETWORKS)))
    other, _ = build(name if name in NETWORKS else next(iter(NETWORKS)), seed=1)
    values = dict(other.named_parameters(remove_duplicate=False)) | dict(other.named_buffers(remove_duplicate=False))
    before = {key: value.clone() for key, value in plain.state_dict().items()}
    with torch.no_grad():
        torch.testing.assert_close(call_with(plain, values, inputs, {}), other(*inputs))
    assert all(torch.equal(value, before[key]) for key, value in plain.state_dict().items())


def test_a_leaf_runs_with_the_values_it_is_given():
    norm, x = nn.LayerNorm(3), torch.randn(2, 3)
    norm.__dict__["weight"] = norm._parameters["weight"].detach()  # as FSDP does while its forward runs
    given = {"weight": torch.tensor([1.0, 2.0, 3.0]), "bias": torch.ones(3)}
    torch.testing.assert_close(call_leaf(norm, given, x), nn.functional.layer_norm(x, (3,), **given))


class Holder(nn.Module):
    """Keeps its layers in all kinds of places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.listed = [self.layer]
        self.named = {"one": (self.layer, 2)}
        self.method = self.step
        self.bound = functools.partial(self.apply_layer, self.layer)
        self.words = ["word"] * 100
        self.itself = [self.listed]
        self.itself.append(self.itself)

    def step(self, x):
        return self.layer(x)

    @staticmethod
    def apply_layer(layer, x):
        return layer(x)

    def forward(self, x):
        return self.listed[0](x) + self.named["one"][0](x) + self.method(x) + self.bound(x) + self.itself[0][0](x)


def test_references_lead_to_the_copies():
    holder, x = Holder(), torch.randn(2, 3)
    values = {"layer.weight": torch.zeros(3, 3), "layer.bias": torch.ones(3)}
    assert torch.equal(call_with(holder, values, (x,), {}), torch.full((2, 3), 5.0))
    copied = replica(holder)
    assert copied.listed[0] is copied.named["one"][0] is copied.layer is not holder.layer
    assert copied.words is holder.words
    assert original(copied) is holder and original(replica(copied).layer) is holder.layer


def test_hooks_are_shared_or_their_own():
    layer = nn.Linear(2, 2)
    seen = []
    layer.register_forward_hook(lambda *args: seen.append("old"))
    replica(layer)(torch.ones(1, 2))
    assert seen == ["old"]
    mine = replica(layer, own_hooks=True)
    mine.register_forward_hook(lambda *args: seen.append("new"))
    mine(torch.ones(1, 2))
    layer(torch.ones(1, 2))
    assert seen == ["old", "old", "new", "old"]


def test_hooks_that_a_model_registers_when_it_runs_do_not_pile_up():
    class Captures(nn.Linear):
        def forward(self, x):
            self.register_forward_hook(lambda *args: None)
            return super().forward(x)

    model = lb.bayesianize(nn.Sequential(Captures(3, 4), nn.Linear(4, 2)), lb.DeepEnsemble(2))
    lb.predict(model, torch.randn(5, 3))
    assert not any(module._forward_hooks for module in model.member.modules())


def test_compiled_parts_run_uncompiled():
    calls = []

    def backend(graph, inputs):
        calls.append(1)
        return graph

    for compile_ in (lambda m: m.compile(backend=backend), lambda m: None):
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        compile_(net[0])
        if not is_compiled(net):
            net[0] = torch.compile(net[0], backend=backend)
        assert is_compiled(net)
        x = torch.randn(3, 2)
        assert torch.equal(replica(net)(x), nn.functional.relu(nn.functional.linear(x, *net[0].parameters())))
    assert not calls


def test_selectors_see_the_models_own_layers():
    model = lb.bayesianize(
        nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), lb.MeanField(init_std=0.5)
    ).eval()
    x, first = torch.randn(4, 3), model[0]
    with lb.sampling(mean=lambda name, module: module is first):
        outputs = lb.predict(replica(model), x, 3, seed=0).outputs
        assert torch.equal(outputs, lb.predict(model, x, 3, seed=0).outputs)


def test_modes_come_back_when_the_last_prediction_is_over():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[0].eval()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with eval_mode(model):
            inside.set()
            leave.wait(10)

    with eval_mode(model):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
        assert not model.training and not model[1].training
    assert not model.training and not model[1].training  # the other one is not done
    leave.set()
    thread.join()
    assert model.training and model[1].training and not model[0].training
