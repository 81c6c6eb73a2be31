"""A model's own dropout layers, kept on in eval mode by MCDropout(p=None)."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes.testing import assert_folds, assert_probability_close

SHAPES = {nn.Dropout: (4, 3, 5), nn.Dropout1d: (4, 3, 5), nn.Dropout2d: (4, 3, 5, 2), nn.Dropout3d: (4, 3, 2, 2, 5)}


def make(kind, p=0.4):
    torch.manual_seed(0)
    return lb.bayesianize(nn.Sequential(kind(p), nn.Identity()), lb.MCDropout(p=None))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_entries_are_zero_or_scaled_in_both_modes(kind, training):
    model = make(kind).train(training)
    x = 1 + torch.rand(200, *SHAPES[kind][1:])
    y = model(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / 0.6)
    rate = 1 - kept.float().mean()
    draws = x.numel() if kind is nn.Dropout else x.shape[0] * x.shape[1]
    assert abs(rate - 0.4) < 5 * (0.24 / draws) ** 0.5
    if kind is not nn.Dropout:
        whole = kept.flatten(2)
        assert torch.equal(whole, whole[..., :1].expand_as(whole))


@pytest.mark.parametrize("kind", SHAPES)
def test_folds(kind):
    assert_folds(make(kind).append(nn.PReLU()), torch.randn(SHAPES[kind]))


@pytest.mark.parametrize("kind", SHAPES)
def test_means_do_nothing(kind):
    x = torch.randn(SHAPES[kind])
    with lb.sampling(mean=True):
        assert torch.equal(make(kind)(x), x)
    assert torch.equal(make(kind, p=0.0)(x), x)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_joint_draw_drops_the_same_in_all_rows_of_a_sample(kind):
    x = torch.ones(SHAPES[kind])
    with lb.sampling(n=3, joint=True):
        y = lb.split(make(kind)(lb.fold(x, 3)), 3)
    assert torch.equal(y, y[:, :1].expand_as(y))
    assert not torch.equal(y[0], y[1])


def test_a_held_draw_stays():
    model, x = make(nn.Dropout), torch.ones(4, 3, 5)
    with lb.sampling(hold=True):
        assert torch.equal(model(x), model(x))
    assert not torch.equal(model(x), model(x))


class Twice(nn.Module):
    """Uses one dropout layer for two hidden layers, as many networks do."""

    def __init__(self):
        super().__init__()
        self.drop, self.weight = nn.Dropout(0.5), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return torch.stack([self.drop(x), self.drop(x)], 1) * self.weight


@pytest.mark.parametrize("method", [lb.MCDropout(p=None), lb.DeepEnsemble(2, of=lb.MCDropout(p=None))], ids=str)
def test_a_layer_used_twice_drops_twice_in_every_kind_of_draw(method):
    torch.manual_seed(0)
    model, x = lb.bayesianize(Twice(), method), torch.ones(2, 400)
    for joint in (False, True):
        kept = lb.predict(model, x, 4, joint=joint, seed=0).outputs != 0  # [4, 2, 2, 400]
        assert_probability_close(kept.all(2)[:, 0].flatten(), 0.25)
    together = lb.predict(model, x, 4, joint=True, seed=0).outputs
    assert torch.equal(together[:, 0], together[:, 1])
    assert torch.equal(lb.predict(model, x, 4, joint=True, seed=0, chunk=1).outputs, together)
    with lb.sampling(hold=True):
        first = model(x)
        assert torch.equal(model(x), first)  # the same function once more
    assert not torch.equal(first[:, 0], first[:, 1])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Twice()

    def forward(self, x):
        self.part(x)  # the masks of the second call are the third and the fourth
        return checkpoint(self.part, x, use_reentrant=False, context_fn=lb.checkpoint_contexts)


def test_a_second_run_of_a_block_drops_what_the_first_did():
    torch.manual_seed(0)
    model, x = lb.bayesianize(Checkpointed(), lb.MCDropout(p=None)), torch.ones(3, 50, requires_grad=True)
    with lb.sampling(joint=True, seed=0):
        y = model(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, y.sum(1).detach())


def test_a_point_estimate_has_the_plain_layer_back():
    point = lb.point_estimate(make(nn.Dropout2d))
    assert type(point[0]) is nn.Dropout2d
    assert point[0].p == 0.4


def test_a_model_without_dropout_layers_is_an_error():
    with pytest.raises(ValueError, match="MCDropout finds no layer it supports"):
        lb.bayesianize(nn.Sequential(nn.Linear(3, 2)), lb.MCDropout(p=None))
