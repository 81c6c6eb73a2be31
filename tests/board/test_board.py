"""The board: scores, ranks and contenders."""

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_wine

from leanbayes.board.contender import Forecast, Gaussians
from leanbayes.board.ours import OURS
from leanbayes.board.rivals import RIVALS
from leanbayes.board.scores import class_scores, regression_scores
from leanbayes.board.sets import class_split
from leanbayes.board.summary import difference, mean_of, ranks
from leanbayes.learn._defaults import DEFAULT_METHOD
from leanbayes.learn._methods import named_method


def line(rows, seed=0):
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, (rows, 2))
    return x, x[:, 0] + 0.1 * random.standard_normal(rows)


def test_normal_forecasts_have_the_density_and_the_interval_of_their_distribution():
    mean, std, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 3.0]), np.array([0.3, -1.0, 2.0])
    found = Gaussians(lambda x: (mean, std)).forecast(np.zeros((3, 1)), y)
    truth = stats.norm(mean, std)
    np.testing.assert_allclose(found.log_density, truth.logpdf(y))
    np.testing.assert_allclose([found.lower, found.upper], [truth.ppf(0.05), truth.ppf(0.95)])


def test_scores_of_regression():
    y = np.array([1.0, 2.0, 3.0, 4.0])
    forecast = Forecast(y + [1, -1, 1, -1], y - [1, 1, 1, -1], y + 2, np.array([-1.0, -2.0, -3.0, -4.0]))
    assert regression_scores(forecast, y) == {"rmse": 1.0, "log density": -2.5, "coverage": 0.75, "width": 2.5}
    assert regression_scores(forecast._replace(log_density=None), y)["log density"] is None


def test_scores_of_classes():
    probs = np.array([[0.8, 0.2], [0.4, 0.6], [1.0, 0.0]])
    found = class_scores(probs, np.array([0, 0, 1]))
    assert found["accuracy"] == pytest.approx(1 / 3)
    # What was held to be impossible costs what the smallest float32 does.
    assert found["nll"] == pytest.approx(-(np.log(0.8) + np.log(0.4) + np.log(np.finfo(np.float32).tiny)) / 3)
    assert found["ece"] == pytest.approx((0.2 + 0.6 + 1.0) / 3)


def test_ranks_are_shares_of_those_that_were_run():
    board = {"a": {"x": [1.0], "y": [3.0]}, "b": {"x": [2.0], "y": [2.0]}, "c": {"x": [3.0], "y": None}}
    assert ranks(board, ["x", "y"], higher=True) == {"a": (0.5, 2, 1), "b": (0.75, 2, 0), "c": (0.0, 1, 1)}
    assert ranks(board, ["x"], higher=False)["a"] == (0.0, 1, 1)


def test_equal_contenders_share_a_rank():
    assert ranks({"a": {"x": [1.0]}, "b": {"x": [1.0]}}, ["x"], higher=True) == {"a": (0.0, 1, 1), "b": (0.0, 1, 1)}


def test_differences_go_split_by_split():
    mean, error = difference([1.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    assert (mean, error) == (pytest.approx(4 / 3), pytest.approx(np.std([1, 1, 2], ddof=1) / np.sqrt(3)))
    assert difference([1.0, None], [0.0, 1.0]) is None and difference(None, [1.0]) is None
    assert mean_of([]) is None


def test_splits_of_classes_are_stratified_and_repeatable():
    first, again = ([class_split("wine", number) for number in range(2)] for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(first[0].test_x) == 36 and np.bincount(first[0].test_y).min() >= 9
    assert not np.array_equal(first[0].test_x, first[1].test_x)


@pytest.mark.parametrize("name", ["random-forest", "gradient-boosting", "gaussian-process"])
def test_rivals_of_scikit_learn_know_how_sure_they_are(name):
    (x, y), (new, truth) = line(200), line(200, seed=1)
    found = regression_scores(RIVALS[name].regress(x, y, 0).forecast(new, truth), truth)
    assert found["rmse"] < 0.25 and found["log density"] > 0 and 0.8 < found["coverage"] < 0.99
    x, y = load_wine(return_X_y=True)
    scores = class_scores(RIVALS[name].classify(x[::2], y[::2], 0)(x[1::2]), y[1::2])
    assert scores["accuracy"] > 0.85


@pytest.mark.filterwarnings("ignore")  # those libraries' own
@pytest.mark.parametrize(
    ("name", "module"), [("ngboost", "ngboost"), ("catboost", "catboost"), ("tabm", "tabm"), ("laplace", "laplace")]
)
def test_rivals_of_other_libraries(name, module):
    pytest.importorskip(module)
    (x, y), (new, truth) = line(100), line(100, seed=1)
    found = regression_scores(RIVALS[name].regress(x, y, 0).forecast(new, truth), truth)
    assert found["rmse"] < 0.6 and 0.3 < found["coverage"] <= 1


def test_conformal_intervals():
    pytest.importorskip("mapie")
    (x, y), (new, truth) = line(1000), line(1000, seed=1)
    found = regression_scores(RIVALS["conformal"].regress(x, y, 0).forecast(new, truth), truth)
    assert found["log density"] is None and 0.815 < found["coverage"] < 0.985  # four standard errors of 200 rows


def test_ours_are_methods_that_can_be_named_and_none_is_the_default_again():
    names = [name for name in OURS if name != "default"]
    assert [named_method(name).name for name in names] == names and DEFAULT_METHOD not in names
