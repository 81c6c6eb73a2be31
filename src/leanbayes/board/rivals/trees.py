"""Trees of scikit-learn, with normal noise of the size of errors on rows that they were not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.model_selection import KFold, cross_val_predict

from leanbayes.board.contender import Array, Gaussians

_FOLDS = 5


def forest_regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """A random forest; the errors are those of the trees that a row was left out of."""
    forest: Any = RandomForestRegressor(oob_score=True, random_state=seed).fit(x, y)
    return _with_noise(forest, y - forest.oob_prediction_)


def boosted_regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """Gradient boosting; the errors are those of a cross-validation."""
    model = HistGradientBoostingRegressor(random_state=seed)
    errors = y - cross_val_predict(model, x, y, cv=KFold(_FOLDS, shuffle=True, random_state=seed))
    return _with_noise(model.fit(x, y), errors)


def forest_classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """A random forest."""
    return RandomForestClassifier(random_state=seed).fit(x, y).predict_proba


def boosted_classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """Gradient boosting."""
    return HistGradientBoostingClassifier(random_state=seed).fit(x, y).predict_proba


def _with_noise(model: Any, errors: Array) -> Gaussians:
    std = float(np.sqrt(np.nanmean(errors**2)))
    return Gaussians(lambda x: (model.predict(x), np.full(len(x), std)))
