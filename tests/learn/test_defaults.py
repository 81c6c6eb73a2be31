"""What the estimators take where nothing is said."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

import leanbayes as lb
from leanbayes.compare import preset
from leanbayes.learn import BayesClassifier, BayesRegressor
from leanbayes.learn._defaults import _STEPS, batch_size_for, epochs_for
from leanbayes.models import MLP, QuantileBins, TabularMLP

QUICK = {"hidden": (8,), "epochs": 2, "random_state": 0}


def steps(count, seed):
    """A staircase with noise that grows from step to step, and its noise's standard deviation."""
    random = np.random.RandomState(seed)
    X = random.uniform(0, 3, (count, 2))
    level = np.floor(X[:, 0])
    return X, 10 * level + (1 + level) * random.randn(count), 1 + level


def test_network_method_and_noise():
    X, y, _ = steps(60, 0)
    regressor = BayesRegressor(**QUICK).fit(X, y)
    assert isinstance(regressor.model_, TabularMLP) and regressor.model_.output.weight.shape == (2, 8)
    assert {layer.method for layer in lb.summary(regressor.model_).layers if layer.method} == {
        preset("batch-ensemble").suited("table").method
    }
    assert regressor.likelihood_.heteroscedastic and BayesRegressor().hidden == (128, 128)
    classifier = BayesClassifier("batch_ensemble", **QUICK).fit(X, y > y.mean())
    same = BayesClassifier(**QUICK).fit(X, y > y.mean())
    np.testing.assert_array_equal(classifier.predict_proba(X), same.predict_proba(X))


def test_bins_are_quantiles_of_the_scaled_inputs():
    X, y, _ = steps(60, 0)
    regressor = BayesRegressor(**QUICK).fit(X, y)
    bins = next(module for module in regressor.model_.modules() if isinstance(module, QuantileBins))
    scaled = (X - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(bins.edges.numpy(), np.quantile(scaled, [0, 1], axis=0).T, atol=1e-6)
    own = BayesRegressor(module=lambda inputs, outputs: TabularMLP(inputs, [8], outputs, bins=3), epochs=2).fit(X, y)
    np.testing.assert_allclose(own.model_.bins.edges[:, 0], scaled.min(0), atol=1e-6)


@pytest.mark.parametrize("hidden", [8, np.int64(8), (8,), np.array([8])])
def test_a_number_is_one_hidden_layer(hidden):
    X, y = np.random.RandomState(0).randn(40, 2), np.arange(40.0)
    model = BayesRegressor(hidden=hidden, epochs=2, random_state=0).fit(X, y).model_
    assert [layer.in_features for layer in model.modules() if hasattr(layer, "in_features")][1:] == [8]


@pytest.mark.parametrize("hidden", ["128", 0, 8.5, None, (8, -1), (True,)])
def test_units_that_make_no_sense(hidden):
    with pytest.raises(ValueError, match=r"BayesRegressor\(hidden=...\) takes the units of each layer, such as"):
        BayesRegressor(hidden=hidden, epochs=2).fit(np.zeros((30, 2)), np.arange(30.0))


def test_no_hidden_layer_is_a_linear_model():
    X, y, _ = steps(60, 0)
    assert type(BayesRegressor(hidden=(), epochs=2).fit(X, y).model_) is MLP


def test_batches_and_epochs_by_the_rows():
    """Every size gets enough steps to learn something, and not so many that it takes an hour."""
    for rows in (1, 20, 31, 32, 33, 1500, 1501, 4001, 12_001, 10**5):
        size = batch_size_for(rows)
        per_epoch = -(-rows // size)
        total = epochs_for(rows, size) * per_epoch
        # At most an epoch over the steps that are meant, and no less than them where they take under 300 epochs.
        assert 32 <= size <= 256 and min(300 * per_epoch, _STEPS + rows // 8) <= total < _STEPS + rows / 8 + per_epoch
    X, y, _ = steps(100, 0)
    regressor = BayesRegressor(hidden=(4,), early_stopping=False, random_state=0).fit(X, y)
    assert regressor.n_iter_ == epochs_for(100, 32)


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
def test_auto_is_the_only_word(name):
    X, y, _ = steps(40, 0)
    with pytest.raises(ValueError, match=name):
        BayesRegressor(**{name: "many"}).fit(X, y)


def test_steps_and_their_noise_are_found():
    """Nothing is tuned: the means jump where the data do, and the noise is that of the step."""
    torch.manual_seed(0)
    X, y, _ = steps(1000, 0)
    regressor = BayesRegressor(hidden=(64, 64), epochs=30, random_state=0).fit(X, y)
    X, y, noise = steps(2000, 1)
    mean, std = regressor.predict(X, return_std=True)
    inside = np.abs(X[:, 0] - np.round(X[:, 0])) > 0.1  # a jump is known to a few rows only
    for level in range(3):
        rows = inside & (noise == 1 + level)
        assert np.abs(mean[rows] - 10 * level).mean() < 0.5 * (1 + level)
        assert std[rows].mean() == pytest.approx(1 + level, rel=0.35)
    low, high = regressor.predict_quantiles(X, [0.05, 0.95]).T
    assert 0.84 < np.mean((low < y) & (y < high)) < 0.96
