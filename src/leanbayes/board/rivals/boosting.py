"""NGBoost and CatBoost, which predict distributions by themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanbayes.bench.peers.adapter import library
from leanbayes.board.contender import Array, Gaussians


def natural_regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """NGBoost: normal distributions by natural gradients."""
    model = library("ngboost").NGBRegressor(verbose=False, random_state=seed).fit(x, y)

    def moments(new: Array) -> tuple[Array, Array]:
        found = model.pred_dist(new)
        return found.loc, found.scale

    return Gaussians(moments)


def natural_classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """NGBoost for classes."""
    distributions = library("ngboost.distns")
    make = library("ngboost").NGBClassifier
    classes = distributions.k_categorical(int(y.max()) + 1)
    return make(Dist=classes, verbose=False, random_state=seed).fit(x, y).predict_proba


def cat_regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """CatBoost with the loss that predicts a variance beside the mean."""
    make = library("catboost").CatBoostRegressor
    model = make(loss_function="RMSEWithUncertainty", random_seed=seed, **_QUIET).fit(x, y)

    def moments(new: Array) -> tuple[Array, Array]:
        mean, variance = model.predict(new, prediction_type="RMSEWithUncertainty").T
        return mean, np.sqrt(variance)

    return Gaussians(moments)


def cat_classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """CatBoost for classes."""
    make = library("catboost").CatBoostClassifier
    return make(random_seed=seed, **_QUIET).fit(x, y).predict_proba


_QUIET = {"verbose": False, "allow_writing_files": False, "thread_count": 1}
