"""Scikit-learn's own checks of estimators, all of them."""

import pytest

pytest.importorskip("sklearn")

from sklearn.utils.estimator_checks import parametrize_with_checks

from leanbayes.learn import BayesClassifier, BayesRegressor

# Small and quick, but good enough for the checks that look at scores.
QUICK = {"hidden": (16,), "epochs": 12, "batch_size": 32, "lr": 0.03, "samples": 8}


# A network that has its noise to learn, too, takes longer.
@parametrize_with_checks([BayesClassifier(**QUICK), BayesRegressor(**QUICK | {"epochs": 30})])
def test_estimator_checks(estimator, check):
    check(estimator)
