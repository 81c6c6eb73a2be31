"""refresh_batchnorm: statistics against direct computations, and nothing else changes."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import leanbayes as lb
from leanbayes.analysis import compress, refresh_batchnorm
from leanbayes.training.seeds import derive
from tests.families import ENSEMBLES, ONE_OF_EACH
from tests.networks import SmallNet

X = 2 + 3 * torch.randn(40, 2, 4, 4, generator=torch.Generator().manual_seed(3))
BATCHES = X.split(8)


def converted(method, plain=None):
    torch.manual_seed(0)
    return lb.bayesianize(plain or SmallNet(), method)


def norms(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def seen_by_the_norm(model, x, seed, n=1):
    """What goes into the norm of a small net in one pass, drawn as `refresh_batchnorm` draws."""
    seen = []
    handle = norms(model)[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with lb.sampling(seed=seed, n=n), torch.no_grad():
        model(lb.fold(x, n))
    handle.remove()
    return torch.cat(seen).double()


def test_the_average_over_batches_of_unequal_size():
    model = converted(lb.MeanField(init_std=0.3, estimator="weight")).eval()
    batches = X.split(12)  # 12, 12, 12, 4
    expected_mean, expected_var = 0, 0
    for number, batch in enumerate(batches):
        seen = seen_by_the_norm(model, batch, derive(5, "batch", number), n=3)
        expected_mean += len(batch) / 40 * seen.mean((0, 2, 3))
        expected_var += len(batch) / 40 * seen.var((0, 2, 3))
    assert refresh_batchnorm(model, [(x, None) for x in batches], samples=3, seed=5) == 1
    torch.testing.assert_close(model.norm.running_mean.double(), expected_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.norm.running_var.double(), expected_var, rtol=1e-5, atol=1e-6)
    assert model.norm.num_batches_tracked == 4


class NormedStates(nn.Module):
    """A recurrent network that normalises its last state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.lstm(x)[1][0][-1])


def test_loaders_of_packed_sequences_and_of_mappings():
    sequences = [torch.randn(length, 3) for length in (5, 2, 4, 3)]
    packed = nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    for loader in ([packed], [(packed, torch.zeros(4))], [{"x": packed, "labels": torch.zeros(4)}]):
        model = converted(lb.MeanField(init_std=0.3), NormedStates()).eval()
        assert refresh_batchnorm(model, loader, samples=2) == 1
        seen = seen_by_the_norm(model, packed, derive(0, "batch", 0), n=2)
        torch.testing.assert_close(model.norm.running_mean.double(), seen.mean(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="loader must be an iterable of batches"):
        refresh_batchnorm(model, packed)


def test_a_plain_model_is_as_by_torch():
    torch.manual_seed(0)
    net = nn.Sequential(SmallNet(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    expected = copy.deepcopy(net)
    update_bn(BATCHES, expected)
    assert refresh_batchnorm(net, BATCHES) == 2
    for found, wanted in zip(norms(net), norms(expected), strict=True):
        torch.testing.assert_close(found.running_mean, wanted.running_mean)
        torch.testing.assert_close(found.running_var, wanted.running_var)


def test_many_draws_give_the_moments_of_the_posterior():
    """Inputs to the norm are w x with w ~ N(m, s^2): their mean and variance are known."""
    net = lb.bayesianize(nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5)), lb.MeanField(init_std=0.4))
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    samples = 4000
    refresh_batchnorm(net, [x], samples=samples)
    mean, std = net[0].weight.mean().detach(), 0.4
    norm = net[1]
    expected = (x @ mean.mT).mean(0)
    error = std * x.norm(dim=1).mean() / samples**0.5
    assert ((norm.running_mean - expected).abs() < 4 * error).all()
    variance = (x @ mean.mT).var(0, correction=0) + std**2 * x.square().sum(1).mean()
    assert (norm.running_var / variance - 1).abs().max() < 0.05


def test_mixtures_average_over_their_components():
    """A rank-1 mixture without noise: the statistics are those of all components on all rows."""
    model = converted(lb.BatchEnsemble(components=4, random_sign=0.5)).eval()
    refresh_batchnorm(model, [X])
    seen = []
    for k in range(4):
        handle = model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        with lb.sampling(component=k), torch.no_grad():
            model(X)
        handle.remove()
    every = torch.cat(seen)
    torch.testing.assert_close(model.norm.running_mean, every.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.norm.running_var, every.var((0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_patched_norms():
    """EMP patches the norm itself; what it normalises is the plain convolution's output."""
    model = converted(lb.EMP(components=3))
    patched = lb.bayesianize(copy.deepcopy(SmallNet()), lb.EMP(components=3), where=lb.named("norm"))
    for each in (model, patched):
        assert refresh_batchnorm(each, BATCHES) == 1
    plain = torch.nn.functional.conv2d(X, patched.conv.weight, patched.conv.bias, padding=1)
    torch.testing.assert_close(patched.norm.core.running_mean, plain.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert model.norm.core.running_mean.abs().max() > 0.01


@pytest.mark.parametrize("plain", [SmallNet, lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.BatchNorm1d(4))])
def test_members_of_an_ensemble_have_their_own(plain):
    model = converted(lb.DeepEnsemble(members=3), plain())
    at_once = model._batches
    assert refresh_batchnorm(model, BATCHES) == 1
    for k in range(3):
        member = model.member_module(k)
        expected = copy.deepcopy(member)
        update_bn(BATCHES, expected)
        for found, wanted in zip(norms(member), norms(expected), strict=True):
            torch.testing.assert_close(found.running_mean, wanted.running_mean)
            torch.testing.assert_close(found.running_var, wanted.running_var)
    first, second = (model.member_module(k).state_dict() for k in (0, 1))
    assert any(not torch.equal(first[key], second[key]) for key in first if key.endswith("running_mean"))
    assert model._batches == at_once


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *ENSEMBLES])
def test_statistics_alone_change(name):
    model = converted(
        (ONE_OF_EACH | ENSEMBLES)[name],
        nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), SmallNet(), nn.Dropout(0.5)),
    )
    model.train()
    list(model.modules())[1].eval()
    modes = [m.training for m in model.modules()]
    momenta = [m.momentum for m in norms(model)]
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    refresh_batchnorm(model, BATCHES)
    assert modes == [m.training for m in model.modules()] and momenta == [m.momentum for m in norms(model)]
    assert torch.equal(state, torch.get_rng_state())
    changed = {key.split(".")[-1] for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    first = copy.deepcopy(model.state_dict())
    refresh_batchnorm(model, BATCHES)
    assert all(torch.equal(value, first[key]) for key, value in model.state_dict().items())


def test_a_norm_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x) + self.norm(10 + x)

    model, x = Twice(), torch.randn(30, 3)
    refresh_batchnorm(model, [x])
    torch.testing.assert_close(model.norm.running_mean, 5 + x.mean(0))
    torch.testing.assert_close(model.norm.running_var, x.var(0))


def test_plain_dropout_is_off():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(2))
    refresh_batchnorm(net, [X])
    torch.testing.assert_close(net[1].running_var, X.var((0, 2, 3)))


def test_means_where_the_state_says_so():
    model = converted(lb.MeanField(init_std=1.0))
    expected = lb.point_estimate(copy.deepcopy(model))
    with lb.sampling(mean=True):
        refresh_batchnorm(model, BATCHES)
    update_bn(BATCHES, expected)
    torch.testing.assert_close(model.norm.running_mean, expected.norm.running_mean)


def test_after_compression():
    model = converted(lb.MeanField(init_std=0.2))
    small = compress(model, rank=1)
    assert refresh_batchnorm(small, BATCHES) == 1 and not torch.equal(small.norm.running_mean, model.norm.running_mean)


def test_errors_leave_everything_as_it_was():
    model = converted(lb.MeanField())
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    for loader, error in (
        ([X, torch.zeros(3, 7)], RuntimeError),
        ([], ValueError),
        ([X, X * torch.nan], ValueError),
        (X, TypeError),
        (3, TypeError),
    ):
        with pytest.raises(error):
            refresh_batchnorm(model, loader)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert modes == [m.training for m in model.modules()] and model.norm.momentum == 0.1
    assert refresh_batchnorm(nn.Linear(2, 2), [torch.zeros(3, 2)]) == 0
