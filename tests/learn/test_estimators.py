"""The estimators beyond scikit-learn's own checks."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import leanbayes as lb
from leanbayes._auto_samples import stage_counts
from leanbayes.learn import BayesClassifier, BayesRegressor

QUICK = {"hidden": (16,), "epochs": 12, "batch_size": 32, "lr": 0.03, "samples": 8, "random_state": 0}
METHODS = [
    None,
    lb.KTied(),
    lb.VariationalDropout(),
    lb.Rank1(components=4, random_sign=0.5),
    lb.Rank1(posterior="cauchy"),
    lb.BatchEnsemble(random_sign=0.5),
    lb.ECMP(components=2),
    lb.EMP(components=2),
    lb.MCDropout(),
    lb.DropConnect(),
    lb.DeepEnsemble(members=2),
    {"output": lb.MeanField(), "*": None},
]


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(120, n_features=3, centers=3, random_state=1)


@pytest.fixture(scope="module")
def classifier(blobs):
    return BayesClassifier(**QUICK).fit(*blobs)


def wave(count, seed):
    """A noisy sine, with the standard deviation of its noise: 5."""
    random = np.random.RandomState(seed)
    X = random.uniform(-2, 2, (count, 1))
    return X, 100 + 20 * np.sin(2 * X[:, 0]) + 5 * random.randn(count)


@pytest.fixture(scope="module")
def regressor():
    return BayesRegressor(epochs=100, noise="constant", random_state=0).fit(*wave(300, 0))


def test_digits_accuracy():
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    classifier = BayesClassifier(epochs=30, random_state=0).fit(X_train, y_train)
    assert classifier.score(X_test, y_test) > 0.95


def test_probabilities_sum_to_one(classifier, blobs):
    probs = classifier.predict_proba(blobs[0])
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-12)
    assert (probs >= 0).all()
    np.testing.assert_array_equal(classifier.predict(blobs[0]), probs.argmax(1))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_methods_predict_alike_in_subsets(method, blobs):
    X, y = blobs
    classifier = BayesClassifier(method, **QUICK).fit(X, y)
    whole = classifier.predict_proba(X)
    parts = [classifier.predict_proba(part) for part in (X[:7], X[7:])]
    np.testing.assert_allclose(np.concatenate(parts), whole)
    np.testing.assert_allclose(classifier.predict_proba(X[::-1])[::-1], whole)
    assert classifier.score(X, y) > 0.9


@pytest.mark.parametrize("method", ["plain", "batch-ensemble"])
def test_a_feature_that_never_varied_says_nothing(method, blobs):
    X, y = blobs
    classifier = BayesClassifier(method, **QUICK).fit(np.column_stack([X, np.full(len(X), 2024.0)]), y)
    before, after = (np.column_stack([X, np.full(len(X), year)]) for year in (2024.0, 2300.0))
    np.testing.assert_array_equal(classifier.predict_proba(after), classifier.predict_proba(before))


def test_large_inputs_are_predicted_by_the_same_functions(classifier, blobs):
    tiled = np.tile(blobs[0], (40, 1))
    np.testing.assert_allclose(classifier.predict_proba(tiled)[-120:], classifier.predict_proba(blobs[0]))


def test_predictions_are_those_of_lb_predict(classifier, blobs):
    scaled = torch.as_tensor((blobs[0] - blobs[0].mean(0)) / blobs[0].std(0))
    expected = lb.predict(classifier.model_, scaled, 8, seed=classifier.seed_, joint=True).probs
    np.testing.assert_allclose(classifier.predict_proba(blobs[0]), expected, rtol=1e-9)


@pytest.mark.parametrize("names", [["a", "b", "c"], [True, False], [7, -1, 30], ["x"]], ids=str)
def test_labels_of_any_kind(names):
    X, y = make_blobs(60, centers=len(names), random_state=1)
    labels = np.array(names)[y]
    classifier = BayesClassifier(**QUICK).fit(X, labels)
    np.testing.assert_array_equal(classifier.classes_, np.unique(labels))
    assert classifier.predict(X).dtype == labels.dtype
    assert classifier.score(X, labels) > 0.9


def test_same_state_same_result_and_torch_generators_untouched(blobs):
    state = torch.get_rng_state()
    first = BayesClassifier(**QUICK).fit(*blobs)
    probs = first.predict_proba(blobs[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    second = clone(first).fit(*blobs)
    np.testing.assert_array_equal(second.predict_proba(blobs[0]), probs)
    other = clone(first).set_params(random_state=1).fit(*blobs)
    assert abs(other.predict_proba(blobs[0]) - probs).max() > 1e-4


@pytest.mark.parametrize("make", [BayesClassifier, BayesRegressor])
def test_weights_count_as_repetitions(make, blobs):
    X, y = blobs
    weights = np.arange(len(y)) % 3
    weighted = make(**QUICK).fit(X, y, sample_weight=weights)
    repeated = make(**QUICK).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    np.testing.assert_array_equal(weighted.loss_curve_, repeated.loss_curve_)


def test_fractional_weights_shift_the_answer():
    X = np.zeros((100, 1))
    y = np.arange(100) % 2
    # Two distinct examples: one step per epoch.
    classifier = BayesClassifier(**{**QUICK, "epochs": 150}).fit(X, y, sample_weight=np.where(y == 1, 0.9, 0.1))
    assert classifier.predict_proba(X[:1])[0, 1] == pytest.approx(0.9, abs=0.05)


def test_kl_counts_against_the_sum_of_the_weights(blobs):
    X, y = blobs
    schedule = BayesClassifier(**QUICK, kl_weight=lambda step: 10.0).fit(X, y, sample_weight=np.full(len(y), 10.0))
    plain = BayesClassifier(**QUICK, kl_weight=1.0).fit(X, y)
    np.testing.assert_allclose(schedule.loss_curve_, plain.loss_curve_, rtol=1e-4)


def test_pickle(classifier, regressor, blobs):
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict_proba(blobs[0]), classifier.predict_proba(blobs[0]))
    X = wave(5, 2)[0]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(regressor)).predict(X), regressor.predict(X))


def test_pipeline_and_grid_search():
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), BayesClassifier(**QUICK))
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.8
    grid = {
        "bayesclassifier__method": [None, lb.Rank1()],
        "bayesclassifier__epochs": np.array([2, 12]),
    }
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_params_["bayesclassifier__epochs"] == 12


def test_own_module(blobs):
    def network(features, outputs):
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, outputs))

    classifier = BayesClassifier(lb.MCDropout(p=None), module=network, **QUICK).fit(*blobs)
    assert isinstance(classifier.model_[1], nn.Tanh)
    assert classifier.score(*blobs) > 0.9


def test_regression_coverage_and_scale(regressor):
    X, y = wave(2000, 1)
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_array_equal(regressor.predict(X), mean)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 6.5
    assert 4 < std.mean() < 8
    low, high = regressor.predict_quantiles(X, [0.05, 0.95]).T
    assert 0.85 < np.mean((low < y) & (y < high)) < 0.98
    # The noise is fitted near its true value, and the model's own doubt comes on top.
    log_var = regressor.likelihood_.split(torch.zeros(1, 1, 1))[1].item()
    noise = np.exp(0.5 * log_var) * regressor.target_scaler_.scale_[0]
    assert noise == pytest.approx(5, rel=0.3)
    assert (std >= noise * 0.999).all()


def test_regression_is_less_certain_far_from_the_data(regressor):
    _, std = regressor.predict(np.array([[0.0], [20.0]]), return_std=True)
    assert std[1] > 2 * std[0]


def test_quantiles(regressor):
    X = wave(50, 3)[0]
    low, middle, high = regressor.predict_quantiles(X).T
    assert ((low < middle) & (middle < high)).all()
    np.testing.assert_array_equal(regressor.predict_quantiles(X, 0.5), middle)
    _, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose((high - low) / std, 2 * 1.645, rtol=0.1)
    with pytest.raises(ValueError, match="quantile levels are from 0 to 1"):
        regressor.predict_quantiles(X, 1.5)


def test_log_density_is_that_of_the_predictive_distribution(regressor, monkeypatch):
    X, y = wave(30, 7)
    found = regressor.log_density(X, y)
    # A density integrates to one, and its quantiles are those that are predicted.
    mean, std = regressor.predict(X[:1], return_std=True)
    grid = mean + std * np.linspace(-12, 12, 20_001)
    density = np.exp(regressor.log_density(np.repeat(X[:1], len(grid), 0), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-4)
    below = grid < regressor.predict_quantiles(X[:1], 0.25)[0]
    assert np.trapezoid(density[below], grid[below]) == pytest.approx(0.25, abs=2e-3)
    monkeypatch.setattr("leanbayes.learn._base.BLOCK", 7)
    monkeypatch.setattr("leanbayes.learn.regressor.BLOCK", 7)
    np.testing.assert_allclose(regressor.log_density(X, y), found, rtol=1e-6)
    with pytest.raises(ValueError, match=r"targets of shape \(30,\), as in fit, not \(30, 1\)"):
        regressor.log_density(X, y[:, None])


def test_log_density_adds_up_over_independent_targets():
    X, y = wave(100, 3)
    targets = np.column_stack([y, 100 * y[::-1]])
    both = BayesRegressor(epochs=5, random_state=0).fit(X, targets)
    inputs = torch.as_tensor(both.input_scaler_.transform(X))
    drawn = lb.predict(both.model_, inputs, both.samples, likelihood=both.likelihood_, seed=both.seed_, joint=True)
    scaled = torch.as_tensor(both.target_scaler_.transform(targets))
    each = [
        lb.Prediction(draw[None], both.likelihood_).log_prob(scaled) for draw in drawn.outputs
    ]  # of one network: a sum over its two targets
    expected = torch.logsumexp(torch.stack(each), 0) - math.log(len(each)) - np.log(both.target_scaler_.scale_).sum()
    np.testing.assert_allclose(both.log_density(X, targets), expected, rtol=1e-6)


def test_regression_follows_the_units_of_the_targets():
    X, y = wave(100, 0)
    plain = BayesRegressor(**QUICK).fit(X, y)
    # A power of two, so that standardising gives the same numbers.
    scaled = BayesRegressor(**QUICK).fit(X, 1024 * y)
    for got, expected in zip(scaled.predict(X, return_std=True), plain.predict(X, return_std=True)):
        np.testing.assert_allclose(got, 1024 * expected, rtol=1e-6)


def test_several_targets():
    X, y = wave(200, 0)
    targets = np.column_stack([y, -1000 * y])
    regressor = BayesRegressor(**{**QUICK, "epochs": 40}).fit(X, targets)
    mean, std = regressor.predict(X, return_std=True)
    assert mean.shape == std.shape == targets.shape
    assert regressor.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (200, 2, 3)
    assert regressor.predict_quantiles(X, 0.5).shape == (200, 2)
    assert regressor.score(X, targets) > 0.5


def test_feature_names():
    pandas = pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    classifier = BayesClassifier(**QUICK).fit(frame, y)
    assert classifier.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[list("dcba")])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, r"BayesClassifier\(epochs=...\) takes a whole number from 1, not 0"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"samples": 0}, "samples"),
        ({"lr": -1.0}, "lr"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"kl_weight": float("nan")}, "kl_weight"),
        ({"hidden": (0,)}, "hidden"),
        ({"device": "tpu"}, r"BayesClassifier\(device='tpu'\) is no device that torch can use here: "),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, message, blobs):
    with pytest.raises(ValueError, match=message):
        BayesClassifier(**{**QUICK, **settings}).fit(*blobs)


def test_samples_that_settle_are_chosen_by_fit(blobs):
    X, y = blobs
    classifier = BayesClassifier(**{**QUICK, "samples": "auto"}).fit(X, y)
    assert classifier.samples_ in stage_counts()
    fixed = clone(classifier).set_params(samples=classifier.samples_).fit(X, y)
    assert np.allclose(classifier.predict_proba(X), fixed.predict_proba(X))
    # The number does not depend on the rows that are asked for.
    assert np.allclose(classifier.predict_proba(X[:1]), fixed.predict_proba(X)[:1])


def test_bad_data_is_named(classifier, regressor, blobs):
    X, y = blobs
    with pytest.raises(NotFittedError):
        BayesRegressor().predict(X)
    with pytest.raises(NotFittedError):
        BayesRegressor().predict_quantiles(X)
    with pytest.raises(ValueError, match="2 features, but BayesClassifier is expecting 3"):
        classifier.predict(X[:, :2])
    with pytest.raises(ValueError, match="NaN"):
        classifier.predict(np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="[Nn]egative"):
        BayesClassifier(**QUICK).fit(X, y, sample_weight=-np.ones(len(y)))
    with pytest.raises(ValueError, match="zero"):
        BayesRegressor(**QUICK).fit(X, y, sample_weight=np.zeros(len(y)))
    with pytest.raises(ValueError, match="label type"):
        BayesClassifier(**QUICK).fit(X, X[:, 0])


def test_verbose_prints_every_epoch(blobs, capsys):
    fitted = BayesClassifier(**{**QUICK, "epochs": 2}, verbose=True).fit(*blobs)
    wanted = f"epoch 2/2: loss {fitted.loss_curve_[1]:.4f}, held-out NLL {fitted.validation_curve_[1]:.4f}"
    assert capsys.readouterr().out.splitlines()[1] == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fit_and_predict_on_a_gpu(blobs):
    classifier = BayesClassifier(**QUICK, device="cuda").fit(*blobs)
    assert next(classifier.model_.parameters()).is_cuda
    assert classifier.score(*blobs) > 0.9
