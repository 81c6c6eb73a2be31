"""Recurrent cells: one draw lasts for a forward pass of the model, so that all steps see the same weights."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, NOT_RECURRENT, ONE_OF_EACH, everywhere
from tests.networks import Cells, build

CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
X = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))


class Loop(nn.Module):
    """The states of a cell at every step."""

    def __init__(self, kind):
        super().__init__()
        self.cell = CELLS[kind](4, 5)

    def forward(self, x):
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


def drawn_cell(plain, cell, sample, n):
    """The plain cell with the weights that the context in force holds."""
    other = copy.deepcopy(plain)
    for name, parameter in other.named_parameters():
        owner = getattr(cell, name)
        if not isinstance(owner, nn.Parameter):
            parameter.data = owner.rsample(n, current_sampling())[sample].detach()
    return other


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize("kind", CELLS)
def test_all_steps_of_a_pass_see_one_draw(kind, family):
    plain = Loop(kind)
    model = lb.bayesianize(copy.deepcopy(plain), ONE_OF_EACH[family], where=everywhere)
    with torch.no_grad(), lb.sampling(n=2, seed=1, hold=True):
        folded = lb.split(model(lb.fold(X, 2)), 2)
        for s in range(2):
            loop = copy.deepcopy(plain)
            loop.cell = drawn_cell(plain.cell, model.cell, s, 2)
            torch.testing.assert_close(folded[s], loop(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_without_a_held_draw_too(kind):
    """A pass over a prefix with the same seed agrees with the whole: no step draws anew."""
    model = lb.bayesianize(Loop(kind), lb.MeanField(init_std=0.3))
    with torch.no_grad():
        with lb.sampling(seed=1):
            whole = model(X)
        with lb.sampling(seed=1):
            prefix = model(X[:, :2])
    torch.testing.assert_close(whole[:, :2], prefix)


@pytest.mark.parametrize("kind", CELLS)
def test_two_passes_draw_twice(kind):
    model = lb.bayesianize(Loop(kind), lb.MeanField(init_std=0.3))
    with torch.no_grad():
        assert not torch.allclose(model(X), model(X), atol=1e-3)


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT])
def test_folds(family):
    torch.manual_seed(0)
    assert_folds(lb.bayesianize(Cells(), LAYERWISE[family], where=everywhere), X)


def test_one_component_for_all_cells():
    torch.manual_seed(0)
    model = lb.bayesianize(Cells(), lb.BatchEnsemble(components=4, init_spread=1.0))
    with torch.no_grad():
        members = [lb.point_estimate(model, component=k)(X) for k in range(4)]
        for _ in range(10):
            drawn = model(X)
            assert any(torch.allclose(drawn, member, atol=1e-6) for member in members)


def test_a_step_without_a_batch_axis():
    plain, _ = build("cells")
    cell = lb.bayesianize(copy.deepcopy(plain.lstm), lb.MeanField())
    with lb.sampling(mean=True):
        for ours, torchs in zip(cell(X[0, 0]), plain.lstm(X[0, 0])):
            assert torch.equal(ours, torchs)
    with pytest.raises(ValueError, match="without a batch axis, but n=2"), lb.sampling(n=2):
        cell(X[0, 0])
