"""PhaseMonitor: what it records, and that training does not notice it."""

import json

import pytest
import torch

import leanbayes as lb
from leanbayes.analysis import PhaseMonitor, phases
from leanbayes.training import fit
from tests.training.problems import assert_same, config, data, network, weights


def test_training_is_the_same_with_a_monitor():
    x, y = data()
    plain, watched = (network(lb.VariationalDropout(), dropout=0.3) for _ in range(2))
    fit(plain, (x, y), config(epochs=4))
    monitor = PhaseMonitor(x, y, samples=2)
    history = fit(watched, (x, y), config(epochs=4), callbacks=[monitor])
    assert_same(weights(plain), weights(watched))
    assert history.stopped is None and watched.training
    assert [record["epoch"] for record in monitor.records] == [1, 2, 3, 4]


def test_records_are_the_reports_of_the_epochs():
    x, y = data()
    model = network(lb.VariationalDropout())
    monitor = PhaseMonitor(x, y, every=3, samples=4, layers="3", seed=2)
    fit(model, (x, y), config(epochs=7), callbacks=[monitor])
    assert [record["epoch"] for record in monitor.records] == [3, 6]
    assert json.loads(json.dumps(monitor.records, allow_nan=False)) == monitor.records
    assert [layer["name"] for layer in monitor.records[0]["layers"]] == ["3"]
    fit_to_six = network(lb.VariationalDropout())
    fit(fit_to_six, (x, y), config(epochs=6))
    report = phases(fit_to_six, x, y, samples=4, layers="3", seed=2)
    assert monitor.records[-1] == {"epoch": 6} | report.to_dict()


def test_every_counts_from_one():
    with pytest.raises(ValueError, match="every counts epochs from 1, not 0"):
        PhaseMonitor(*data(), every=0)


def test_what_is_wrong_is_said_before_epochs_are_spent():
    x, y = torch.randn(20, 4), torch.randint(2, (20,))
    with pytest.raises(ValueError, match="one class label for each of 20 inputs"):
        PhaseMonitor(x, y[:3], every=3)
    model = lb.bayesianize(torch.nn.Linear(4, 2), lb.VariationalDropout())
    epochs = []
    monitor = PhaseMonitor(x, y, every=3, layers="typo")
    with pytest.raises(ValueError, match="'typo' matches none of the layers"):
        fit(model, (x, y), config(epochs=3), callbacks=[lambda _: epochs.append(1), monitor])
    assert len(epochs) == 1
