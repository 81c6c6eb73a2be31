"""Gaussian processes of scikit-learn: a length scale for each feature, and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from leanbayes.board.contender import Array, Gaussians
from leanbayes.board.rivals import _network


def regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """Its kernel is fitted by the marginal likelihood."""
    scaler = _network.scaler(x)
    scales: Any = np.ones(x.shape[1])
    kernel = ConstantKernel() * RBF(scales, (1e-2, 1e4)) + WhiteKernel(0.1)
    process: Any = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(scaler.transform(x), y)
    return Gaussians(lambda new: process.predict(scaler.transform(new), return_std=True))


def classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """One length scale, as the classes are fitted one by one."""
    scaler = _network.scaler(x)
    process = GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=seed).fit(scaler.transform(x), y)
    return lambda new: process.predict_proba(scaler.transform(new))
