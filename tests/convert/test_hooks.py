"""Hooks of the plain modules go along, there and back, and their handles still remove them."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling.state import LOCAL
from tests.networks import SmallNet

X = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
METHODS = [lb.MeanField(), lb.Rank1(), lb.EMP()]


class Seen:
    """Counts calls by kind of hook; deep copies count for themselves."""

    def __init__(self):
        self.calls = []

    def forward(self, module, args, output):
        self.calls.append("forward")

    def forward_kwargs(self, module, args, kwargs, output):
        self.calls.append("forward_kwargs")

    def pre(self, module, args):
        self.calls.append("pre")

    def pre_kwargs(self, module, args, kwargs):
        self.calls.append("pre_kwargs")

    def backward(self, module, grad_input, grad_output):
        self.calls.append("backward")

    def backward_pre(self, module, grad_output):
        self.calls.append("backward_pre")

    def register(self, module):
        return [
            module.register_forward_hook(self.forward),
            module.register_forward_hook(self.forward_kwargs, with_kwargs=True),
            module.register_forward_pre_hook(self.pre),
            module.register_forward_pre_hook(self.pre_kwargs, with_kwargs=True),
            module.register_full_backward_hook(self.backward),
            module.register_full_backward_pre_hook(self.backward_pre),
        ]


EVERY_KIND = ["pre", "pre_kwargs", "forward", "forward_kwargs", "backward_pre", "backward"]


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_hook_fires_and_its_handle_removes_it(method):
    model, seen = SmallNet(), Seen()
    handles = seen.register(model.output)
    model = lb.bayesianize(model, method)
    model(X).sum().backward()
    assert seen.calls == EVERY_KIND
    for handle in handles:
        handle.remove()
    model(X).sum().backward()
    assert seen.calls == EVERY_KIND


@pytest.mark.parametrize("method", METHODS)
def test_hooks_come_back_with_a_point_estimate(method):
    model = SmallNet()
    calls = []
    model.output.register_forward_hook(lambda module, args, output: calls.append(type(module)))
    point = lb.point_estimate(lb.bayesianize(model, method))
    point(X)
    assert calls == [nn.Linear]


def test_hooks_of_the_model_itself():
    layer = nn.Linear(3, 2)
    calls = []
    layer.register_forward_hook(lambda module, args, output: calls.append(type(module).__name__))
    layer.register_forward_pre_hook(lambda module, args: calls.append("pre"))
    model = lb.bayesianize(layer, lb.MeanField())
    model(torch.randn(4, 3))
    assert calls == ["pre", "BayesianLayer"]
    point = lb.point_estimate(model)
    point(torch.randn(4, 3))
    assert calls[2:] == ["pre", "Linear"]
    assert len(point._forward_hooks) == len(point._forward_pre_hooks) == 1


def test_a_point_estimate_has_no_hooks_of_the_conversion():
    point = lb.point_estimate(lb.bayesianize(SmallNet(), lb.MeanField()))
    assert not point._forward_hooks and not point._forward_pre_hooks and not point._forward_hooks_always_called
    assert not hasattr(point, "leanbayes_report")


def test_a_point_estimate_has_none_of_parts_that_were_converted_on_their_own_either():
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 3))
    net[0], net[1] = lb.bayesianize(net[0], lb.MeanField()), lb.bayesianize(net[1], lb.Rank1())
    for module in lb.point_estimate(net).modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._forward_hooks_always_called
        assert not module._forward_pre_hooks_with_kwargs and not hasattr(module, "leanbayes_report")


def test_a_hook_that_changes_the_output():
    model = SmallNet()
    model.hidden.register_forward_hook(lambda module, args, output: 0 * output)
    expected = copy.deepcopy(model)(X)
    model = lb.bayesianize(model, lb.MeanField())
    with lb.sampling(mean=True):
        assert torch.equal(model(X), expected)


def test_a_bound_method_does_not_drag_its_owner_into_copies():
    """Only conversion copies the layer's settings; what a hook belongs to stays out of it."""

    class Owner:
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

        def hook(self, module, args, output):
            pass

    model = SmallNet()
    model.hidden.register_forward_hook(Owner().hook)
    lb.bayesianize(model, lb.MeanField())(X)


@pytest.mark.parametrize("kind", ["hidden", "norm"])
def test_a_failing_forward_leaves_no_frame_behind(kind):
    model = lb.bayesianize(SmallNet(), lb.Rank1())

    def fail(module, args):
        raise RuntimeError("no")

    handle = model.get_submodule(kind).register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        model(X)
    handle.remove()
    assert LOCAL.frames == []
    assert model(X).shape == (3, 3)
    with pytest.raises(RuntimeError), lb.sampling(n=2):
        model(torch.randn(2, 9, 4, 4))
    assert LOCAL.frames == []
    assert len(LOCAL.states) == 1
