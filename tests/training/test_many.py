"""Networks that are trained side by side are what each would be alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import SideBySide, TrainConfig, fit, fit_many

METHODS = {
    "mean-field": lb.MeanField(),
    "local": lb.MeanField(estimator="local"),
    "k-tied": lb.KTied(2),
    "rank-1": lb.Rank1(components=2),
    "batch ensemble": lb.BatchEnsemble(3),
    "EMP": lb.EMP(3),
    "EMP by example": lb.EMP(3, draw="example"),
    "ECMP": lb.ECMP(3),
    "dropout": lb.MCDropout(0.2),
    "variational dropout": lb.VariationalDropout(),
}
CONFIG = TrainConfig(epochs=3, batch_size=8, lr=0.05, weight_decay=0.01, device="cpu", hold_out=0)


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()


def examples(seed, rows=20):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1) + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


def assert_equal(one, other):
    # Batched products round otherwise, which Adam divides by small numbers.
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_plain_networks_become_what_they_would_alone(optimizer):
    config = TrainConfig(**{**CONFIG.to_dict(), "optimizer": optimizer})
    together = [build(seed) for seed in range(4)]
    alone = copy.deepcopy(together)
    data = [examples(seed) for seed in range(4)]
    history = fit_many(together, data, config, likelihood=lb.Gaussian(2.0))
    losses = []
    for network, part in zip(alone, data):
        losses.append(fit(network, part, config, likelihood=lb.Gaussian(2.0))["loss"])
    for one, other in zip(together, alone):
        assert_equal(one, other)
    assert history["loss"] == pytest.approx([sum(epoch) for epoch in zip(*losses)])


@pytest.mark.parametrize("name", METHODS)
def test_converted_networks_become_what_they_would_alone_at_their_means(name):
    # Without noise the two ways have to agree, KL and all.
    together = [lb.bayesianize(build(seed), METHODS[name]) for seed in range(3)]
    alone = copy.deepcopy(together)
    data = [examples(seed) for seed in range(3)]
    with lb.sampling(mean=True):
        fit_many(together, data, CONFIG, likelihood=lb.Gaussian(2.0))
        for network, part in zip(alone, data):
            fit(network, part, CONFIG, likelihood=lb.Gaussian(2.0))
    for one, other in zip(together, alone):
        assert_equal(one, other)


@pytest.mark.parametrize("name", METHODS)
def test_the_divergence_is_the_sum_of_theirs(name):
    networks = [lb.bayesianize(build(seed), METHODS[name]) for seed in range(3)]
    with torch.no_grad():
        total = lb.kl(SideBySide(networks))
        wanted = sum(lb.kl(network).double() for network in networks)
    assert float(total) == pytest.approx(float(wanted), rel=1e-6)  # it is summed in float32


@pytest.mark.parametrize("name", METHODS)
def test_outputs_have_the_moments_of_each_network(name):
    networks = [lb.bayesianize(build(seed), METHODS[name]).eval() for seed in range(2)]
    x = torch.stack([examples(7)[0], examples(8)[0]], 1)  # [20, 2, 3]
    samples = 4000
    with torch.no_grad():
        found = lb.predict(SideBySide(networks).eval(), x, samples, seed=1).outputs  # [S, 20, 2, 1]
        for number, network in enumerate(networks):
            wanted = lb.predict(network, x[:, number], samples, seed=2).outputs
            mean, other = found[:, :, number].mean(0), wanted.mean(0)
            error = ((found[:, :, number].var(0) + wanted.var(0)) / samples).sqrt()
            assert ((mean - other).abs() <= 5 * error + 1e-9).all()
            ratio = found[:, :, number].var(0) / wanted.var(0).clamp(min=1e-30)
            if wanted.var(0).min() > 1e-12:
                assert (ratio - 1).abs().max() < 0.35


@pytest.mark.parametrize("name", ["mean-field", "EMP", "ECMP", "dropout", "rank-1"])
def test_networks_draw_noise_of_their_own(name):
    network = lb.bayesianize(build(0), METHODS[name])
    outputs = SideBySide([network, network, network])(examples(0)[0].unsqueeze(1).expand(20, 3, 3))
    assert not torch.equal(outputs[:, 0], outputs[:, 1]) or not torch.equal(outputs[:, 1], outputs[:, 2])


def test_patched_heads_draw_side_by_side_where_one_network_would_look_at_its_choice():
    networks = [lb.bayesianize(nn.Linear(3, 4), lb.EMP(3), where=lb.named("")).eval() for _ in range(2)]
    with torch.no_grad():
        outputs = SideBySide(networks)(torch.randn(5, 2, 3))
    for number, network in enumerate(networks):
        copies = network.weight.posterior.copies
        assert outputs[:, number].shape == (5, 4) and copies.shape == (3, 4, 3)


def test_learned_precisions_are_trained_for_each_network():
    together = [build(seed) for seed in range(3)]
    alone = copy.deepcopy(together)
    data = [examples(seed) for seed in range(3)]
    likelihoods = [lb.Gaussian("learned").double() for _ in range(3)]
    fit_many(together, data, CONFIG, likelihood=likelihoods)
    for one, other, part, likelihood in zip(together, alone, data, likelihoods):
        expected = lb.Gaussian("learned").double()
        fit(other, part, CONFIG, likelihood=expected)
        assert_equal(one, other)
        torch.testing.assert_close(likelihood.log_precision, expected.log_precision, rtol=1e-9, atol=1e-11)
    assert len({float(likelihood.log_precision.detach()) for likelihood in likelihoods}) == 3


def test_classes_are_the_default():
    networks = [nn.Linear(3, 4) for _ in range(4)]
    alone = copy.deepcopy(networks)
    data = [(torch.randn(20, 3), torch.randint(4, (20,))) for _ in networks]
    fit_many(networks, data, CONFIG)
    fit(alone[2], data[2], CONFIG)
    torch.testing.assert_close(networks[2].weight, alone[2].weight)


def test_a_run_goes_on_where_it_was_left(tmp_path):
    data = [examples(seed) for seed in range(2)]
    whole, parts = [[lb.bayesianize(build(seed), lb.MeanField()) for seed in range(2)] for _ in range(2)]
    fit_many(whole, data, TrainConfig(epochs=4, batch_size=8, device="cpu"), likelihood=lb.Gaussian(1.0))
    for epochs in (2, 4):
        config = TrainConfig(epochs=epochs, batch_size=8, device="cpu")
        fit_many(parts, data, config, likelihood=lb.Gaussian(1.0), out=tmp_path / "run", resume=True)
    for one, other in zip(whole, parts):
        assert_equal(one, other)


def test_networks_come_back_one_by_one():
    networks = [build(seed) for seed in range(3)]
    for one, other in zip(SideBySide(networks).networks(), networks):
        assert_equal(one, other)
        assert all(a.data_ptr() != b.data_ptr() for a, b in zip(one.parameters(), other.parameters()))


def test_the_step_can_be_compiled():
    networks = [lb.bayesianize(build(seed), lb.EMP(3)) for seed in range(2)]
    elbo = lb.ELBO(SideBySide(networks), 20, lb.Gaussian(1.0))
    x, y = (torch.stack(parts, 1) for parts in zip(examples(0), examples(1)))
    torch._dynamo.reset()
    with lb.sampling(mean=True):
        wanted = elbo(x, y).loss
        found = torch.compile(elbo, backend="aot_eager", fullgraph=True)(x, y).loss
    torch.testing.assert_close(found, wanted)


class TestBadInput:
    def test_other_structures(self):
        with pytest.raises(ValueError, match=r"network 1 differs from the first in 'weight': \[2, 4\], torch.float32"):
            SideBySide([nn.Linear(3, 2), nn.Linear(4, 2)])
        with pytest.raises(ValueError, match="Tanh instead of ReLU"):
            SideBySide([nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), nn.Sequential(nn.Tanh(), nn.Linear(3, 2))])

    def test_no_network(self):
        with pytest.raises(ValueError, match="one network or more"):
            SideBySide([])

    def test_inputs_for_other_networks(self):
        with pytest.raises(ValueError, match=r"take inputs \[B, 2, ...\], one for each of them, not \(5, 3\)"):
            SideBySide([nn.Linear(3, 2), nn.Linear(3, 2)])(torch.randn(5, 3))

    def test_learned_mixing(self):
        networks = [lb.bayesianize(build(0), lb.EMP(2, learn_mixing=True)) for _ in range(2)]
        with pytest.raises(ValueError, match="learned mixing"):
            SideBySide(networks)

    def test_data_of_other_shapes(self):
        networks = [build(0), build(1)]
        with pytest.raises(ValueError, match="one \\(x, y\\) for each of the 2 networks, not 1"):
            fit_many(networks, [examples(0)], CONFIG, likelihood=lb.Gaussian(1.0))
        with pytest.raises(ValueError, match="that of network 1 is"):
            fit_many(networks, [examples(0), examples(1, rows=21)], CONFIG, likelihood=lb.Gaussian(1.0))
        with pytest.raises(TypeError, match="those of network 0 are not"):
            fit_many(networks, [(*examples(0), torch.ones(20)), examples(1)], CONFIG, likelihood=lb.Gaussian(1.0))

    def test_one_precision_for_several(self):
        with pytest.raises(ValueError, match="once for each of the 2 networks"):
            fit_many([build(0), build(1)], [examples(0)] * 2, CONFIG, likelihood=lb.Gaussian("learned"))

    def test_several_outputs_of_a_learned_precision(self):
        networks = [nn.Linear(3, 2) for _ in range(2)]
        data = [(torch.randn(20, 3), torch.randn(20, 2)) for _ in networks]
        with pytest.raises(ValueError, match=r"outputs=2"):
            fit_many(networks, data, CONFIG, likelihood=[lb.Gaussian("learned") for _ in networks])
        fit_many(networks, data, CONFIG, likelihood=[lb.Gaussian("learned", outputs=2) for _ in networks])

    def test_one_limit_of_all_gradients(self):
        with pytest.raises(ValueError, match="does not support clip"):
            fit_many([build(0)], [examples(0)], TrainConfig(clip=1.0), likelihood=lb.Gaussian(1.0))

    def test_other_settings(self):
        priors = [lb.bayesianize(build(0), lb.MeanField(prior=lb.Normal(0, std))) for std in (0.1, 1.0)]
        dropped = [nn.Sequential(nn.Linear(3, 4), nn.Dropout(p)) for p in (0.1, 0.5)]
        frozen = [nn.Linear(3, 4), nn.Linear(3, 4).requires_grad_(False)]
        for networks, message in ((priors, "std=1.0"), (dropped, "p=0.5"), (frozen, "not trained")):
            with pytest.raises(ValueError, match=f"network 1 differs from the first in .*{message}"):
                SideBySide(networks)

    def test_likelihoods_of_other_settings(self):
        networks, data = [nn.Linear(3, 2) for _ in range(2)], [(torch.randn(20, 3), torch.randint(2, (20,)))] * 2
        for one, other in ((0.0, 0.1), (0.2, 0.0)):
            likelihoods = [lb.Categorical(label_smoothing=share) for share in (one, other)]
            with pytest.raises(ValueError, match="differ in more than what is trained"):
                fit_many(networks, data, CONFIG, likelihood=likelihoods)

    def test_noise_fitted_to_rows_that_are_held_out(self):
        data = [(torch.randn(20, 3), torch.randn(20))] * 2
        with pytest.raises(ValueError, match="holds no rows out"):
            fit_many([build(0), build(1)], data, CONFIG, likelihood=lb.Gaussian(1.0, held_out=True))

    def test_one_network_twice(self):
        network = build(0)
        with pytest.raises(ValueError, match="one of them is there twice"):
            fit_many([network, network], [examples(0)] * 2, CONFIG, likelihood=lb.Gaussian(1.0))


@pytest.mark.parametrize(
    ("shape", "likelihood"),
    [
        ((2,), lb.Categorical(class_dim=1)),  # as many classes as networks
        ((2,), lb.Categorical(label_smoothing=0.2)),
        ((2, 2), lb.Categorical(class_dim=1)),
        ((2, 2), lb.Categorical(class_dim=-1)),
        ((2, 3), None),
    ],
)
def test_a_likelihood_is_said_of_one_network(shape, likelihood):
    torch.manual_seed(0)
    alone = [nn.Sequential(nn.Linear(3, math.prod(shape)), nn.Unflatten(1, shape)).double() for _ in range(2)]
    together = copy.deepcopy(alone)
    labels = (20,) if len(shape) == 1 else (20, 3) if likelihood is None else (20, 2)
    data = [(torch.randn(20, 3).double(), torch.randint(2, labels)) for _ in alone]
    fit_many(together, data, CONFIG, likelihood=likelihood)
    for one, other, part in zip(alone, together, data):
        fit(one, part, CONFIG, likelihood=copy.deepcopy(likelihood))
        for value, wanted in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(value, wanted)
