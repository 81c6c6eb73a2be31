"""gradient_snr: the ratio where it is known, and that nothing notices it."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn.functional import sigmoid

import leanbayes as lb
from leanbayes.analysis import SNRMonitor, gradient_snr
from leanbayes.analysis.snr import _Moments
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training import fit
from leanbayes.training.seeds import derive
from tests.networks import SmallNet
from tests.training.problems import assert_same, config, data, network, weights

X = torch.randn(16, 2, 4, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(4))


class Linear(Likelihood):
    """A "log-likelihood" that is the output: gradients in a standard deviation are normal."""

    def elementwise(self, outputs, targets):
        return outputs.squeeze(-1)

    def check(self, outputs, targets):
        pass


def normal_problem(width=2000, std=0.5, scale=0.02):
    """One output, of one row of inputs `scale`; the gradient in raw_std is s'(raw) (kl'(std) - scale * eps)."""
    model = lb.bayesianize(nn.Linear(width, 1, bias=False), lb.MeanField(init_std=std, estimator="weight"))
    elbo = lb.ELBO(model, dataset_size=100, likelihood=Linear())
    signal = (std / 0.3**2 - 1 / std) / 100
    return elbo, (torch.full((1, width), scale), torch.zeros(1)), (signal / scale) ** 2


@pytest.mark.parametrize("repeats", [10, 40])
def test_the_mean_ratio_of_normal_gradients(repeats):
    """For R normal gradients, R m^2 / s^2 is noncentral F(1, R - 1), so that E[SNR] is known exactly."""
    elbo, batch, squared = normal_problem()
    found = gradient_snr(elbo, batch, repeats=repeats).layers[0]
    expected = 1 + (1 + repeats * squared) / (repeats - 3)
    # The ratios of the parameters are independent.
    ratios = _ratios(elbo, batch, repeats)
    error = float(ratios.std()) / len(ratios) ** 0.5
    assert abs(found.mean - expected) < 4 * error and error < 0.1 * expected
    assert found.parameters == 2000 and found.noiseless == 0


def _ratios(elbo, batch, repeats):
    """The same by hand, from other draws."""
    gradients = []
    parameter = elbo.model.weight.posterior.raw_std
    for number in range(repeats):
        with lb.sampling(seed=1000 + number):
            gradients.append(torch.autograd.grad(elbo(*batch).loss, parameter)[0].double().flatten())
    stacked = torch.stack(gradients)
    return stacked.square().mean(0) / stacked.var(0, correction=0)


def test_many_repeats_give_the_ratio_itself():
    elbo, batch, squared = normal_problem(width=200)
    repeats = 2000
    found = gradient_snr(elbo, batch, repeats=repeats)
    assert found.mean == pytest.approx(1 + squared, rel=0.05)
    assert found.layers[0].median == pytest.approx(1 + squared, rel=0.05)


def test_it_is_the_formula_over_the_gradients_of_the_same_draws():
    """A direct computation with all gradients at hand; each kind of parameter."""
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), {"conv": lb.MeanField(), "hidden": lb.KTied(rank=2), "output": lb.KTied(1)})
    elbo = lb.ELBO(model, dataset_size=200)
    found = gradient_snr(elbo, (X, Y), repeats=6, seed=3)
    groups = {
        "conv": [model.conv.weight.posterior.raw_std],
        "hidden": [model.hidden.weight.posterior.log_u, model.hidden.weight.posterior.log_v],
        "output": [model.output.weight.posterior.log_u, model.output.weight.posterior.log_v],
    }
    gradients = {name: [] for name in groups}
    for number in range(6):
        with lb.sampling(seed=derive(3, "gradient", number)):
            loss = elbo(X, Y).loss
        for name, parameters in groups.items():
            flat = [g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)]
            gradients[name].append(torch.cat(flat).double())
    for row in found.layers:
        stacked = torch.stack(gradients[row.name])
        ratio = stacked.square().mean(0) / stacked.var(0, correction=0)
        noisy = ratio[stacked.var(0) > 0]
        assert row.parameters == len(ratio) and row.noiseless == len(ratio) - len(noisy)
        assert row.mean == pytest.approx(float(noisy.mean()), rel=1e-3)


def test_how_a_standard_deviation_is_stored_makes_no_difference():
    """The gradient in log std is that in raw_std times a constant."""
    elbo, batch, _ = normal_problem(width=50)
    posterior = elbo.model.weight.posterior
    gradients = []
    for number in range(20):
        with lb.sampling(seed=number):
            gradients.append(torch.autograd.grad(elbo(*batch).loss, posterior.raw_std)[0].double())
    raw = torch.stack(gradients)
    std = posterior.std().detach().double()
    logs = raw * std / sigmoid(posterior.raw_std.detach().double())
    ratios = [g.square().mean(0) / g.var(0, correction=0) for g in (raw, logs)]
    torch.testing.assert_close(*ratios)


def test_tied_gradients_have_more_signal_than_free_ones():
    """As in the paper: a factor's gradient averages the noise of many weights, early in training."""
    x = torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    ratios = []
    for method in (lb.MeanField(), lb.KTied(rank=2)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 2))
        elbo = lb.ELBO(lb.bayesianize(net, method), dataset_size=100_000)
        ratios.append(gradient_snr(elbo, (x, y), layers="0").layers[0].median)
    assert 2 < ratios[0] < 10 and ratios[1] > 5 * ratios[0]


def test_batches_are_one_more_source_of_noise():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Linear(4, 2), lb.MeanField(init_std=0.1))
    elbo = lb.ELBO(model, dataset_size=400)
    x = torch.randn(400, 4)
    y = (x[:, 0] > 0).long()
    batches = list(zip(x.split(4), y.split(4), strict=True))
    one = gradient_snr(elbo, (x, y), repeats=100).mean
    several = gradient_snr(elbo, batches, repeats=100).mean
    assert several < one
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    assert gradient_snr(elbo, loader, repeats=100) == gradient_snr(elbo, batches, repeats=100)
    assert gradient_snr(elbo, batches[:3], repeats=6) == gradient_snr(elbo, batches[:3] * 2, repeats=6)


def test_dead_units_are_counted_and_left_out():
    model = lb.bayesianize(nn.Linear(3, 2), lb.MeanField())
    x = torch.randn(8, 3)
    x[:, 1] = 0
    row = gradient_snr(lb.ELBO(model, dataset_size=10), (x, torch.randint(2, (8,)))).layers[0]
    assert row.noiseless == 2 and row.parameters == 6 and row.mean < float("inf")
    silent = gradient_snr(lb.ELBO(model, dataset_size=10), (0 * x, torch.randint(2, (8,))))
    assert silent.mean != silent.mean and silent.to_dict()["mean"] is None and silent.layers[0].noiseless == 6


def test_rounding_is_no_noise():
    moments = _Moments()
    for number in range(10):
        steps = torch.tensor([0.0, 2e-8 * number, 1e-3 * number])
        moments.add(1 + steps)
    first, second, third = moments.snr().tolist()
    assert first == second == float("inf") and 1 < third < 1e6


def test_nothing_changes():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(SmallNet(), nn.Dropout(0.5)), lb.MeanField())
    model[0].norm.eval()
    elbo = lb.ELBO(model, dataset_size=100)
    elbo(X, Y).loss.backward()
    before, modes = copy.deepcopy(elbo.state_dict()), [m.training for m in elbo.modules()]
    gradients = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    with torch.no_grad():
        first = gradient_snr(elbo, (X, Y))
    assert torch.equal(state, torch.get_rng_state()) and modes == [m.training for m in elbo.modules()]
    assert_same(dict(elbo.state_dict()), dict(before))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert first == gradient_snr(elbo, (X, Y)) != gradient_snr(elbo, (X, Y), seed=1)


def test_table_and_json():
    model = lb.bayesianize(nn.Linear(3, 2), lb.KTied(rank=1))
    found = gradient_snr(lb.ELBO(model, dataset_size=10), (torch.randn(8, 3), torch.randint(2, (8,))))
    assert str(found).splitlines()[1].split()[0] == "(model)"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["repeats"] == 10


@pytest.mark.parametrize("method", [lb.MeanField(), lb.KTied(rank=2)], ids=str)
def test_training_is_the_same_with_a_monitor(method):
    x, y = data()
    plain, watched = (network(method, dropout=0.3) for _ in range(2))
    fit(plain, (x, y), config(epochs=4))
    monitor = SNRMonitor(x, y, every=2, batch_size=16, repeats=4)
    history = fit(watched, (x, y), config(epochs=4), callbacks=[monitor])
    assert_same(weights(plain), weights(watched))
    assert [(r["epoch"], r["step"]) for r in monitor.records] == [
        (r["epoch"], r["step"]) for r in history.records[1::2]
    ]
    assert json.loads(json.dumps(monitor.records, allow_nan=False)) == monitor.records
    assert [layer["name"] for layer in monitor.records[0]["layers"]] == ["0", "3"]


def test_a_monitor_takes_the_objective_of_the_run():
    """The KL weight of the run is in the gradients."""
    x, y = data()
    found = []
    for weight in (1.0, 100.0):
        monitor = SNRMonitor(x, y, layers="0")
        fit(network(lb.MeanField()), (x, y), config(epochs=1, lr=1e-6, kl_weight=weight), callbacks=[monitor])
        found.append(monitor.records[0]["mean"])
    assert found[1] > 50 * found[0]


def test_bad_arguments():
    model = lb.bayesianize(nn.Linear(3, 2), lb.MeanField())
    elbo, batch = lb.ELBO(model, dataset_size=10), (torch.randn(8, 3), torch.randint(2, (8,)))
    with pytest.raises(TypeError, match="takes an lb.ELBO of the model, not Bayesian"):
        gradient_snr(model, batch)
    with pytest.raises(ValueError, match="one gradient has no variance"):
        gradient_snr(elbo, batch, repeats=1)
    with pytest.raises(TypeError, match=r"batch is \(inputs, targets\) or several of them, not Tensor"):
        gradient_snr(elbo, batch[0])
    with pytest.raises(ValueError, match="matches none of the layers"):
        gradient_snr(elbo, batch, layers="typo")
    with pytest.raises(ValueError, match="batch_size=9 exceeds the 8 examples"):
        SNRMonitor(*batch, batch_size=9)
    with pytest.raises(ValueError, match="every is a whole number from 1"):
        SNRMonitor(*batch, every=0)
    model.weight.posterior.raw_std.requires_grad_(False)
    with pytest.raises(ValueError, match="no standard deviation is trained"):
        gradient_snr(elbo, batch)
