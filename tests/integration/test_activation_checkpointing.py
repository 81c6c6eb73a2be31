"""Activation checkpointing: the second run of a block draws as the first did."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from tests.families import ALL, LAYERWISE, everywhere


class Blocks(nn.Module):
    """Two blocks, the second one using the table's weight again."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.first = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4))
        self.second = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 7, bias=False))
        self.second[1].weight = self.table.weight
        self.checkpoints = False

    def forward(self, tokens):
        x = self.table(tokens)
        for block in (self.first, self.second):
            if self.checkpoints:
                x = checkpoint(block, x, use_reentrant=False, context_fn=lb.checkpoint_contexts)
            else:
                x = block(x)
        return x


TOKENS = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(0))
STATES = {
    "plain": {},
    "folded": {"n": 2},
    "joint": {"n": 2, "joint": True},
    "hold": {"n": 2, "hold": True},
    "means": {"mean": True},
    "component": {"component": 1},
}


def gradients(model, checkpoints, options, runs=1):
    model.checkpoints = checkpoints
    if hasattr(model, "member"):
        model.member.checkpoints = checkpoints
    n = options.get("n", 1)
    with lb.sampling(seed=1, **options):
        loss = model(lb.fold(TOKENS, n)).square().sum()
    # The context has ended when the blocks run again.
    for _ in range(runs):
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True)
    return [loss, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("family", LAYERWISE)
def test_gradients_are_those_without(family, state):
    torch.manual_seed(0)
    model = lb.bayesianize(Blocks(), LAYERWISE[family], where=everywhere)
    expected = gradients(model, False, STATES[state])
    for ours, plain in zip(gradients(model, True, STATES[state]), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [f for f in ALL if f.startswith("ensemble")])
def test_members_of_an_ensemble(family):
    torch.manual_seed(0)
    model = lb.bayesianize(Blocks(), ALL[family])
    expected = gradients(model, False, {})
    for ours, plain in zip(gradients(model, True, {}), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def test_a_second_backward_pass_draws_the_same_again():
    torch.manual_seed(0)
    model = lb.bayesianize(Blocks(), lb.EMP(init_std=0.3), where=everywhere)
    once = gradients(model, True, {"n": 2, "joint": True})
    twice = gradients(model, True, {"n": 2, "joint": True}, runs=2)
    for ours, plain in zip(twice, once, strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_generator_of_ones_own():
    torch.manual_seed(0)
    model = lb.bayesianize(Blocks(), lb.MeanField(init_std=0.3))

    def run(checkpoints):
        model.checkpoints = checkpoints
        generator = torch.Generator().manual_seed(3)
        with lb.sampling(generator=generator):
            loss = model(TOKENS).square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        return [*grads, generator.get_state()]

    for ours, plain in zip(run(True), run(False)):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("kind", ["dense", "attention"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_without_the_contexts_a_shared_component_is_an_error(reentrant, kind):
    """The layers of a block would each draw a component of their own, and gradients be wrong without a word."""
    torch.manual_seed(0)
    block = nn.Linear(4, 4) if kind == "dense" else nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.block = block

        def forward(self, x):
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    model = lb.bayesianize(Net(), lb.Rank1(components=2))
    output = model(torch.randn(3, 2, 4))
    with pytest.raises(RuntimeError, match="pass context_fn=lb.checkpoint_contexts"):
        output.sum().backward()


@pytest.mark.parametrize("family", ["mean_field", "drop_connect", "mc_dropout"])
def test_without_the_contexts_other_families_are_right_in_the_default_state(family):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4))
            self.checkpoints = False

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False) if self.checkpoints else self.block(x)

    model = lb.bayesianize(Net(), LAYERWISE[family], where=everywhere)
    x, grads = torch.randn(3, 4), []
    for model.checkpoints in (True, False):
        torch.manual_seed(5)
        grads.append(torch.autograd.grad(model(x).square().sum(), list(model.parameters()), allow_unused=True))
    for ours, plain in zip(*grads):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("family", ["emp", "ecmp"])
def test_without_the_contexts_weights_that_are_drawn_together_are_refused(family):
    block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    output = lb.bayesianize(Net(), LAYERWISE[family], where=everywhere)(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="pass context_fn=lb.checkpoint_contexts"):
        output.sum().backward()


@pytest.mark.parametrize("family", ["mean_field", "drop_connect", "emp", "ecmp", "mc_dropout"])
@pytest.mark.parametrize("state", [{"n": 2}, {"estimator": "weight"}, {"zero_mean": True}], ids=str)
def test_without_the_contexts_another_state_is_an_error(family, state):
    """The second run would draw by the default state, and gradients be wrong without a word."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    if state == {"estimator": "weight"} and family == "mc_dropout":
        pytest.skip("masks have no other estimator")
    model = lb.bayesianize(Net(), LAYERWISE[family], where=everywhere)
    with lb.sampling(**state):
        output = model(lb.fold(torch.randn(3, 4, requires_grad=True), state.get("n", 1)))
    with pytest.raises(RuntimeError, match="pass context_fn=lb.checkpoint_contexts"):
        output.sum().backward()


@pytest.mark.parametrize(
    "options", [{"generator": torch.Generator()}, {"batch_dim": 1}], ids=["generator", "batch_dim"]
)
def test_a_state_that_is_not_the_default_one_is_missed_in_the_second_run(options):
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), lb.MeanField())
    with lb.sampling(**options):
        loss = checkpoint(model[0], torch.randn(2, 5, 4), use_reentrant=False).square().sum()
    with pytest.raises(RuntimeError, match="context_fn=lb.checkpoint_contexts"):
        loss.backward()
