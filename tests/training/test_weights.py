"""Weights out of checkpoints."""

import pytest

import leanbayes as lb
from leanbayes.training import fit, load_weights
from tests.training.problems import assert_same, config, data, network, weights


def test_last_and_best(tmp_path):
    x, y = data()
    model = network(lb.MeanField())
    # Learning makes it worse on swapped labels, so that the best epoch is not the last.
    history = fit(model, {"train": (x, y), "valid": (x, 1 - y)}, config(lr=0.05, epochs=12), out=tmp_path)
    assert history.best["epoch"] < 12
    assert_same(weights(load_weights(network(lb.MeanField(), seed=1), tmp_path)), weights(model))
    shorter = network(lb.MeanField())
    fit(shorter, (x, y), config(lr=0.05, epochs=history.best["epoch"]))
    assert_same(weights(load_weights(network(lb.MeanField(), seed=1), tmp_path / "best.pt")), weights(shorter))


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_weights(network(), tmp_path)
