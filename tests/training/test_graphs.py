import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import TrainConfig, fit
from leanbayes.training.data import Batch
from leanbayes.training.graphs import GraphedStep

# Not Adam, whose first steps follow the sign of rounding errors where a gradient is zero, as before a batch norm.
CONFIG = TrainConfig(epochs=4, batch_size=16, lr=2e-2, optimizer="sgd", schedule="linear", anneal=2, clip=5.0)
METHODS = [
    None,
    lb.VariationalDropout(),
    lb.VariationalDropout(prior=lb.StudentT(1e-16)),
    lb.VarianceLayer(),
    lb.MeanField(),
    lb.KTied(),
    lb.Rank1(),
    lb.MCDropout(),
]


def _data(device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(72, 1, 28, 28, generator=generator)  # the last batch of an epoch has 8 examples
    return x.to(device), torch.randint(10, (72,), generator=generator).to(device)


def _net(method):
    torch.manual_seed(0)
    net = lb.models.create("lenet5", batch_norm="dense")
    return net if method is None else lb.bayesianize(net, method)


def _train(net, device, cuda_graph, optimizer="sgd", seed=0, **rest):
    config = replace(CONFIG, device=device, cuda_graph=cuda_graph, optimizer=optimizer, seed=seed)
    return net, fit(net, _data(device), config, progress=False, **rest)


def test_on_the_cpu_it_makes_no_difference():
    (ours, _), (theirs, _) = _train(_net(None), "cpu", True), _train(_net(None), "cpu", False)
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()):
        assert torch.equal(a, b)


def _distance(a, b):
    return torch.stack([(x.cpu() - y.cpu()).norm() for x, y in zip(a.parameters(), b.parameters())]).norm().item()


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_recorded_training_is_the_ordinary_one(method):
    net = _net(method)
    recorded, history = _train(copy.deepcopy(net), "cuda", True)
    ordinary, expected = _train(copy.deepcopy(net), "cuda", False)
    for name in ("loss", "nll", "kl", "lr", "kl_weight"):
        torch.testing.assert_close(history[name], expected[name], rtol=2e-2, atol=2e-3)
    moved = _distance(ordinary, net)
    assert moved > 0.1 and _distance(recorded, net) == pytest.approx(moved, rel=0.1)
    if method is None:
        # Other algorithms round otherwise; other batches would leave 70 % of the way between two trainings.
        assert _distance(recorded, ordinary) < 2e-2 * moved
        return
    # Draws differ: recorded and ordinary training may be as far apart as ordinary ones with other draws and batches.
    apart = max(_distance(ordinary, _train(copy.deepcopy(net), "cuda", False, seed=seed)[0]) for seed in (1, 2))
    assert _distance(recorded, ordinary) < 1.1 * apart


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda m: type(m).__name__)
def test_every_replay_draws_anew(method):
    _check_draws(method, "cuda")


def test_every_step_draws_anew_on_the_cpu():
    _check_draws(lb.VariationalDropout(), "cpu")


def _check_draws(method, device):
    # One batch of equal examples, of which the order does not matter, and no learning: only draws differ.
    torch.manual_seed(0)
    net = lb.bayesianize(lb.models.create("lenet5"), method)
    x = torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0)).expand(16, 1, 28, 28)
    config = replace(CONFIG, epochs=8, lr=1e-20, anneal=0, device=device, cuda_graph=True)
    history = fit(net, (x.to(device), torch.zeros(16, dtype=torch.long, device=device)), config, progress=False)
    assert len(set(history["nll"])) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_learning_rates_reach_the_recording(optimizer):
    # No weight decay and no batch norm: where a gradient is zero, there is no step.
    torch.manual_seed(0)
    net = lb.models.create("mlp", in_features=784, hidden=(16,))
    recorded, _ = _train(copy.deepcopy(net), "cuda", True, optimizer)
    ordinary, _ = _train(copy.deepcopy(net), "cuda", False, optimizer)
    for name, value in ordinary.state_dict().items():
        torch.testing.assert_close(recorded.state_dict()[name], value, rtol=1e-2, atol=2e-3, msg=name)


@pytest.mark.gpu
def test_a_recorded_training_resumes(tmp_path):
    class Stop(Exception):
        pass

    def cut(event):
        if event.record["epoch"] == 3:
            raise Stop

    net = _net(lb.VariationalDropout())
    whole, _ = _train(copy.deepcopy(net), "cuda", True)
    with pytest.raises(Stop):
        _train(copy.deepcopy(net), "cuda", True, out=tmp_path, callbacks=[cut])
    resumed, _ = _train(copy.deepcopy(net), "cuda", True, out=tmp_path, resume=True)
    for (name, ours), theirs in zip(resumed.named_parameters(), whole.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=1e-2, msg=name)


@pytest.mark.gpu
def test_the_last_batch_of_an_epoch_has_a_recording_of_its_own():
    def train(recorded):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
        elbo = lb.ELBO(net, dataset_size=100)
        optimizer = torch.optim.SGD(elbo.parameters(), lr=0.1, momentum=0.9, fused=True)

        def step(batch):
            terms = elbo(batch.x, batch.y)
            terms.loss.backward()
            optimizer.step()
            return terms

        graphed = GraphedStep(step, optimizer, torch.device("cuda"))
        losses, played = [], 0
        for number in range(24):
            rows = 8 if number % 4 == 3 else 16
            x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(number)).cuda()
            batch = Batch(x, (x[:, 0] > 0).long(), None, rows)
            if recorded:
                terms, was_played = graphed(batch)
                played += was_played
            else:
                optimizer.zero_grad()
                terms = step(batch)
            losses.append(terms.loss.item())
        return net, losses, played

    (recorded, losses, played), (ordinary, expected, _) = train(True), train(False)
    assert played == 24 - 4  # three to warm up, and the first of the other shape
    torch.testing.assert_close(losses, expected)
    for a, b in zip(recorded.parameters(), ordinary.parameters()):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.grad, b.grad)
