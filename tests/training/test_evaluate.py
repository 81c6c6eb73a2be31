"""Evaluation during training agrees with `predict`, and training goes on as if there had been none."""

import pytest
import torch

import leanbayes as lb
from leanbayes.training import fit
from leanbayes.training.data import Place, TensorSource
from leanbayes.training.evaluate import evaluate, evaluating
from leanbayes.training.execution import choose_execution
from leanbayes.training.runtime import OneProcess
from tests.training.problems import assert_same, config, data, network, weights

PLACE = Place(torch.device("cpu"))


def prepare(model, likelihood=None, **options):
    runtime = OneProcess(config())
    elbo = lb.ELBO(model, 96, likelihood, **options)
    runtime.setup(elbo, choose_execution(config(), runtime.device, 1, elbo, 96))
    return runtime


@pytest.mark.parametrize("tile", [True, False])
def test_every_component_on_every_example(tile):
    x, y = data()
    runtime = prepare(network(lb.BatchEnsemble(components=3)), tile=tile)
    found = evaluate(runtime, TensorSource(x, y, place=PLACE, batch_size=20, training=False), 5, seed=0)
    prediction = lb.predict(runtime.elbo.model, x)
    assert found["valid_nll"] == pytest.approx(-float(prediction.log_prob(y).mean()), rel=1e-5)
    assert found["valid_accuracy"] == pytest.approx(float((prediction.label == y).float().mean()))


def test_the_mixture_of_many_samples():
    x, y = data(32)
    runtime = prepare(network(lb.MeanField(init_std=0.5)))
    found = evaluate(runtime, TensorSource(x, y, place=PLACE, batch_size=32, training=False), 2000, seed=0)
    wanted = -float(lb.predict(runtime.elbo.model, x, 2000, seed=1).log_prob(y).mean())
    assert found["valid_nll"] == pytest.approx(wanted, rel=0.02)


def test_regression_and_weights():
    x, _ = data()
    y = x.sum(1)
    net = torch.nn.Linear(2, 1)
    runtime = prepare(net, lb.Gaussian(4.0))
    weights = torch.arange(96.0)
    found = evaluate(runtime, TensorSource(x, y, weights, place=PLACE, batch_size=32, training=False), 1, seed=0)
    normal = torch.distributions.Normal(net(x).detach().squeeze(-1), 0.5)
    wanted = -(normal.log_prob(y) * weights).sum() / weights.sum()
    assert found == {"valid_nll": pytest.approx(float(wanted), rel=1e-5)}


def test_everything_is_as_before():
    runtime = prepare(network(lb.MeanField()), samples=2, tile=False)
    runtime.elbo.model[1].eval()
    with pytest.raises(RuntimeError), evaluating(runtime.elbo, 7):
        assert (runtime.elbo.samples, runtime.elbo.training) == (7, False)
        raise RuntimeError
    assert (runtime.elbo.samples, runtime.elbo.tile, runtime.elbo.training) == (2, False, True)
    assert not runtime.elbo.model[1].training


def test_training_does_not_depend_on_it():
    x, y = data()
    with_it, without = network(lb.MeanField(), dropout=0.2), network(lb.MeanField(), dropout=0.2)
    history = fit(with_it, {"train": (x, y), "valid": (x, y)}, config(valid_samples=4))
    fit(without, (x, y), config())
    assert_same(weights(with_it), weights(without))
    assert len(history["valid_nll"]) == 3


def test_now_and_then():
    x, y = data()
    history = fit(network(), {"train": (x, y), "valid": (x, y)}, config(epochs=5, valid_every=2))
    assert ["valid_nll" in record for record in history.records] == [False, True, False, True, True]


def test_no_batch():
    with pytest.raises(ValueError, match="has no examples"):
        fit(network(), {"train": data(), "valid": []}, config())


def test_weights_that_are_all_zero_are_an_error():
    x, y = data(32)
    runtime = prepare(network(lb.MeanField()))
    source = TensorSource(x, y, torch.zeros(32), place=PLACE, batch_size=32, training=False)
    with pytest.raises(ValueError, match="have weight 0"):
        evaluate(runtime, source, 2, seed=0)
