"""The estimators stop in time, and say how sure they are."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import make_blobs
from torch import nn

import leanbayes as lb
from leanbayes.learn import BayesClassifier, BayesRegressor
from leanbayes.learn._loop import Falling, Loop
from leanbayes.learn._methods import named_method
from leanbayes.models import MLP
from leanbayes.objectives.noise import held_out_variance

QUICK = {"hidden": (16,), "epochs": 12, "lr": 0.03, "samples": 8, "random_state": 0}


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(120, n_features=3, centers=3, random_state=1)


def noisy_line(count, seed=0, noise=None):
    random = np.random.RandomState(seed)
    X = random.uniform(-1, 1, (count, 2))
    std = 0.5 if noise is None else noise(X)
    return X, 3 * X[:, 0] + std * random.randn(count)


@pytest.fixture(scope="module")
def overfitted():
    """Many inputs without meaning, which a network learns by heart."""
    random = np.random.RandomState(0)
    X = random.randn(180, 20)
    return X, X[:, 0] + 0.5 * random.randn(180)


def test_overfitting_stops_and_the_density_is_right(overfitted):
    X, y = overfitted
    new = np.random.RandomState(1).randn(1000, 20)
    targets = new[:, 0] + 0.5 * np.random.RandomState(2).randn(1000)
    found = {}
    for stops in (True, False):
        settings = {"epochs": 100, "batch_size": 32, "lr": 1e-2, "weight_decay": 1e-4, "noise": "constant"}
        settings |= {"random_state": 0, "early_stopping": stops, "patience": 20}
        # A perceptron on plain numbers, which learns by heart more readily than the network for tables.
        regressor = BayesRegressor("plain", module=lambda features, outputs: MLP(features, [64], outputs), **settings)
        regressor.fit(X, y)
        mean, std = regressor.predict(new, return_std=True)
        density = -0.5 * ((targets - mean) / std) ** 2 - np.log(std)
        found[stops] = np.sqrt(np.mean((targets - mean) ** 2)), density.mean()
        if stops:
            inside = np.abs(targets - mean) < 1.645 * std
            assert regressor.n_iter_ < 100 and 0.8 < inside.mean() < 0.97
    assert found[True][0] < found[False][0]
    assert found[True][1] > found[False][1] + 1


def test_the_weights_are_those_of_the_best_epoch(blobs):
    X, y = blobs
    classifier = BayesClassifier("plain", **QUICK, patience=2).fit(X, y)
    assert classifier.best_epoch_ == 1 + int(np.argmin(classifier.validation_curve_))
    assert len(classifier.validation_curve_) == len(classifier.loss_curve_) == classifier.n_iter_


def test_the_held_out_nll_is_that_of_the_predictions(blobs):
    """With a point estimate there is one sample, so that the curve and the predictions agree."""
    X, y = blobs
    seen = {}

    class Spy(BayesClassifier):
        def _rows(self, X, y, weights):
            rows = super()._rows(X, y, weights)
            seen[len(X)] = (X, y)
            return rows

    # Few epochs: probabilities near 1 have an NLL that float32 rounds.
    classifier = Spy("plain", **QUICK | {"epochs": 2}).fit(X, y)
    held_X, held_y = seen[24]
    probs = classifier.predict_proba(held_X)[np.arange(24), held_y]
    assert -np.log(probs).mean() == pytest.approx(min(classifier.validation_curve_), rel=1e-4)


def test_the_noise_is_fitted_to_the_held_out_rows_per_output():
    X, y = noisy_line(100)
    targets = np.column_stack([y, 100 * y + 500 * np.random.RandomState(5).randn(100)])
    held = {}

    class Spy(BayesRegressor):
        def _finish(self, model, X, rows):
            super()._finish(model, X, rows)
            held["rows"] = rows

    regressor = Spy("rank1", noise="constant", **QUICK).fit(X, targets)
    rows = held["rows"]
    outputs = lb.predict(regressor.model_, rows.x.double(), 8, seed=regressor.seed_, joint=True).outputs
    wanted = held_out_variance((rows.y.double() - outputs).square(), rows.weights)
    found = regressor.likelihood_.split(torch.zeros(1, 1, 2))[1].detach().exp().flatten().double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)
    assert wanted[1] > 1.2 * wanted[0]


def test_below_twenty_rows_nothing_is_held_out():
    X, y = noisy_line(19)
    few = BayesRegressor(**QUICK).fit(X, y)
    assert few.validation_curve_ is None and few.n_iter_ == 12
    off = BayesRegressor(**QUICK, early_stopping=False).fit(X, y)
    np.testing.assert_array_equal(few.predict(X), off.predict(X))
    assert BayesRegressor(**QUICK).fit(*noisy_line(20)).validation_curve_ is not None


def test_refit_trains_on_all_rows_and_keeps_the_noise(blobs):
    X, y = noisy_line(60)
    steps = []
    made = lb.learn._base.Loop.run_steps

    def run_steps(self, rows, count, rate):
        made(self, rows, count, rate)
        steps.append((len(rows.x), self.history.last["step"], count))

    first = BayesRegressor("plain", **QUICK).fit(X, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lb.learn._base.Loop, "run_steps", run_steps)
        again = BayesRegressor("plain", **QUICK, refit=True).fit(X, y)
    ((rows, taken, wanted),) = steps
    assert rows == 60 and taken == wanted > 0
    assert again.best_epoch_ == first.best_epoch_
    assert float(again.likelihood_.log_factor) == float(first.likelihood_.log_factor)
    assert abs(again.predict(X) - first.predict(X)).max() > 1e-4


def test_refit_begins_with_the_learned_noise_of_the_start():
    X, y = noisy_line(60)
    begun, made = [], lb.learn._base.Loop.run_steps

    def run_steps(self, rows, count, rate):
        begun.append(self.elbo.likelihood.log_precision.item())
        made(self, rows, count, rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lb.learn._base.Loop, "run_steps", run_steps)
        regressor = BayesRegressor("plain", **QUICK, refit=True, noise="constant").fit(X, y)
    assert begun == [0.0] and regressor.likelihood_.log_precision.item() != 0.0


def test_a_warm_start_goes_on_with_the_learned_noise():
    X, y = noisy_line(60)
    settings = QUICK | {"epochs": 100, "noise": "constant", "early_stopping": False, "warm_start": True}
    regressor = BayesRegressor("plain", **settings).fit(X, y)
    before, last = regressor.likelihood_.log_precision.item(), regressor.loss_curve_[-1]
    assert before > 1
    regressor.set_params(epochs=1, lr=1e-6).fit(X, y)
    assert regressor.likelihood_.log_precision.item() == pytest.approx(before, abs=1e-3)
    assert regressor.loss_curve_[0] == pytest.approx(last, abs=0.02)


def test_a_warm_start_holds_out_the_same_examples():
    X, y = noisy_line(60)
    seen = []

    class Spy(BayesRegressor):
        def _rows(self, X, y, weights):
            seen.append({row.tobytes() for row in X})
            return super()._rows(X, y, weights)

    regressor = Spy("plain", **QUICK | {"epochs": 1, "random_state": None}, warm_start=True)
    regressor.fit(X, y).fit(X, y)
    sets = sorted(seen, key=len)
    assert [len(rows) for rows in sets] == [12, 12, 48, 48]
    assert sets[0] == sets[1] and sets[2] == sets[3]


@pytest.mark.parametrize(("rows", "stops"), [(33, False), (41, True)])
def test_a_single_example_left_over_is_no_batch_for_a_batch_norm(rows, stops):
    X, y = noisy_line(rows)

    def module(features, outputs):
        return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))

    settings = QUICK | {"epochs": 2, "batch_size": 32 if rows == 33 else 16, "early_stopping": stops}
    regressor = BayesRegressor("mean-field", module=module, **settings).fit(X, y)
    assert regressor.n_iter_ == 2 and np.isfinite(regressor.predict(X)).all()


@pytest.mark.parametrize("stops", [False, True])
def test_a_training_that_diverges_is_one_clear_error(stops, blobs):
    with pytest.raises(FloatingPointError, match="training has diverged, with a loss of .*; lower lr"):
        BayesRegressor(lb.MeanField(), **QUICK | {"lr": 1e30}, early_stopping=stops).fit(*blobs)


def test_falling_rate():
    assert [Falling(2, 4)(step) for step in range(4)] == [1, 1, 1, 0.5]


def test_heteroscedastic_noise_follows_the_rows():
    X, y = noisy_line(400, noise=lambda X: np.where(X[:, 1] > 0, 1.5, 0.2))
    regressor = BayesRegressor("plain", **QUICK | {"epochs": 60}, noise="heteroscedastic").fit(X, y)
    _, std = regressor.predict(np.array([[0.0, 0.6], [0.0, -0.6]]), return_std=True)
    assert 1 < std[0] < 2.2 and 0.1 < std[1] < 0.5
    with pytest.raises(ValueError, match=r"BayesRegressor\(noise=...\) takes one of 'constant', 'heteroscedastic'"):
        BayesRegressor(noise="some").fit(X, y)


def test_noise_has_a_bound_far_from_all_rows():
    X, y = noisy_line(400, noise=lambda X: np.exp(2 * X[:, 1]))
    regressor = BayesRegressor("plain", **QUICK | {"epochs": 60}).fit(X, y)
    far = np.array([[0.0, 100.0]])
    raw = regressor._predict_block(torch.as_tensor(regressor.input_scaler_.transform(far))).outputs
    assert float(raw[..., 1].max()) > 10  # what the network says: a standard deviation above 100
    _, std = regressor.predict(far, return_std=True)
    assert std[0] < 2 * abs(y).max()


def test_uncertainty_of_classes(blobs):
    X, y = blobs
    classifier = BayesClassifier("rank1", **QUICK).fit(X, y)
    doubt = classifier.predict_uncertainty(X)
    probs = classifier.predict_proba(X)
    np.testing.assert_allclose(doubt.entropy, -(probs * np.log(np.maximum(probs, 1e-300))).sum(1), atol=1e-9)
    np.testing.assert_allclose(doubt["aleatoric"] + doubt["mutual_information"], doubt.entropy, atol=1e-9)
    np.testing.assert_allclose(doubt.confidence, probs.max(1))


@pytest.mark.parametrize("columns", [1, 2])
def test_uncertainty_of_values(columns):
    X, y = noisy_line(80)
    targets = y if columns == 1 else np.column_stack([y, 7 * y])
    regressor = BayesRegressor("mean-field", **QUICK).fit(X, targets)
    doubt = regressor.predict_uncertainty(X, level=0.8)
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_array_equal(doubt.mean, mean)
    np.testing.assert_array_equal(doubt.std, std)
    bounds = np.stack([doubt.lower, doubt.upper], -1)
    np.testing.assert_allclose(bounds, regressor.predict_quantiles(X, [0.1, 0.9]), rtol=1e-9)
    # Of a normal with this standard deviation, in the units of the targets.
    np.testing.assert_allclose(doubt.entropy, np.log(std) + 0.5 * np.log(2 * np.pi * np.e), atol=1e-6)
    np.testing.assert_allclose(doubt.aleatoric + doubt.mutual_information, doubt.entropy, atol=1e-6)
    with pytest.raises(ValueError, match="above 0 and below 1, not 1"):
        regressor.predict_uncertainty(X, level=1)


def test_class_weights_are_sample_weights(blobs):
    X, y = blobs
    X, y = X[y < 2][: 40 + 20], y[y < 2][: 40 + 20]
    counts = np.bincount(y)
    weights = len(y) / (2 * counts)
    by_weight = BayesClassifier(**QUICK).fit(X, y, sample_weight=weights[y])
    for given in ("balanced", {0: weights[0], 1: weights[1]}):
        by_class = BayesClassifier(**QUICK, class_weight=given).fit(X, y)
        np.testing.assert_array_equal(by_class.predict_proba(X), by_weight.predict_proba(X))
    # Together they multiply, and "balanced" balances the weighted classes.
    both = BayesClassifier(**QUICK, class_weight="balanced").fit(X, y, sample_weight=weights[y])
    np.testing.assert_allclose(both.predict_proba(X), by_weight.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("equal", "takes None, 'balanced' or a weight by class, not 'equal'"),
        ({5: 1.0}, "class 5, which no example has"),
        ({0: -1.0}, "positive numbers, not -1.0 for the class 0"),
    ],
)
def test_bad_class_weights_are_named(given, message, blobs):
    with pytest.raises(ValueError, match=message):
        BayesClassifier(class_weight=given).fit(*blobs)


def test_warm_start_goes_on(blobs):
    X, y = blobs
    cold = BayesClassifier("plain", **QUICK | {"epochs": 2, "lr": 0.003})
    warm = clone(cold).set_params(warm_start=True).fit(X, y)
    np.testing.assert_array_equal(warm.predict_proba(X), cold.fit(X, y).predict_proba(X))
    scaler, first = warm.input_scaler_, min(warm.validation_curve_)
    warm.fit(X, y)
    assert warm.input_scaler_ is scaler and min(warm.validation_curve_) < first
    with pytest.raises(ValueError, match="continues with the classes"):
        warm.fit(X, y + 1)
    with pytest.raises(ValueError, match="expecting 3 features"):
        warm.fit(X[:, :2], y)
    regressor = BayesRegressor("plain", **QUICK | {"epochs": 1}, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="continues with targets of shape"):
        regressor.fit(X, np.column_stack([y, y]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "rank1"}, "method has changed from 'plain' to 'rank1'"),
        ({"hidden": (8,)}, r"hidden has changed from \[16\] to \[8\]"),
        ({"noise": "constant"}, "noise has changed from 'heteroscedastic' to 'constant'"),
    ],
    ids=str,
)
def test_a_warm_start_keeps_the_network(settings, message, blobs):
    regressor = BayesRegressor("plain", **QUICK | {"epochs": 1}, warm_start=True).fit(*blobs)
    with pytest.raises(ValueError, match=f"the first fit, but {message}; set it back, or fit a new estimator"):
        regressor.set_params(**settings).fit(*blobs)


def test_methods_by_name(blobs):
    names = ["MeanField", "mean_field", "mean-field"]
    assert len({named_method(name).name for name in names}) == 1
    by_name = BayesClassifier("emp", **QUICK, module=_with_norm).fit(*blobs)
    by_object = BayesClassifier(lb.EMP(components=5), **QUICK, module=_with_norm).fit(*blobs)
    np.testing.assert_array_equal(by_name.predict_proba(blobs[0]), by_object.predict_proba(blobs[0]))
    for wrong, right in (("rnak1", "rank1"), ("meanfeild", "mean-field"), ("batchensembles", "batch-ensemble")):
        with pytest.raises(ValueError, match=f"no method '{wrong}'; did you mean '{right}'"):
            BayesClassifier(wrong).fit(*blobs)
    with pytest.raises(ValueError, match=r"no method 'zzz'; the methods are plain, "):
        BayesClassifier("zzz").fit(*blobs)


def _with_norm(features, outputs):
    return torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, outputs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": 0}, r"BayesClassifier\(patience=...\) takes a whole number from 1, not 0"),
        ({"validation_fraction": 1.5}, r"validation_fraction=...\) takes 'auto', a share"),
        ({"early_stopping": "no"}, r"early_stopping=...\) takes one of False, True, not 'no'"),
        ({"refit": True, "early_stopping": False}, "after early stopping, which is off"),
        ({"warm_start": 2}, "warm_start"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, message, blobs):
    with pytest.raises(ValueError, match=message):
        BayesClassifier(**{**QUICK, **settings}).fit(*blobs)


@pytest.mark.parametrize("estimator", [BayesClassifier, BayesRegressor])
def test_no_group_is_divided_between_training_and_held_out_rows(estimator, monkeypatch):
    seen = {}

    def watch(loop, rows, held, *others):
        seen.update(kept=rows, held=held)
        return Loop.run(loop, rows, 1) or loop.history.records[-1].update(valid_nll=loop.evaluate(held))

    monkeypatch.setattr(Loop, "run_until_worse", watch)
    names = np.array([f"patient {n}" for n in np.random.RandomState(0).permutation(np.arange(120) % 30)])
    # The only input says which group a row is of; some rows are equal, too.
    X = np.array([[float(name.split()[1])] for name in names])
    y = X[:, 0] % 3 if estimator is BayesClassifier else np.arange(120) % 7 / 3
    found = estimator(**QUICK).fit(X, y, groups=names)
    kept, held = ({round(value, 6) for value in seen[part].x[:, 0].tolist()} for part in ("kept", "held"))
    assert len(kept) + len(held) == 30 and not kept & held and len(held) > 3
    assert found.predict(X).shape == (120,)


def test_groups_are_one_for_each_row(blobs):
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        BayesClassifier(**QUICK).fit(*blobs, groups=[1, 2])
    with pytest.raises(ValueError, match="cannot hold out a part of 1 group"):
        BayesClassifier(**QUICK).fit(*blobs, groups=np.ones(120))


def test_rows_that_are_groups_of_their_own_are_held_out_like_rows(blobs):
    X, y = blobs
    alone = BayesClassifier(**QUICK).fit(X, y, groups=np.arange(120))
    assert len(alone.validation_curve_) > 0 and alone.score(X, y) > 0.9
