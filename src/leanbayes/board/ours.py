"""The estimators of this library: the default, which is a BatchEnsemble, and other methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leanbayes.board.contender import LEVEL, Array, Contender, Forecast

_METHODS = {
    "rank1": "rank-1",
    "mean-field": "mean-field",
    "k-tied": "k-tied Normal",
    "mc-dropout": "MC dropout",
    "deep-ensemble": "deep ensemble",
}


class _Regressor:
    def __init__(self, model: Any) -> None:
        self.model = model

    def forecast(self, x: Array, y: Array) -> Forecast:
        ends = self.model.predict_quantiles(x, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Forecast(self.model.predict(x), ends[:, 0], ends[:, 1], self.model.log_density(x, y))


def _contender(title: str, method: Any) -> Contender:
    def regress(x: Array, y: Array, seed: int) -> _Regressor:
        from leanbayes.learn import BayesRegressor

        return _Regressor(BayesRegressor(method, random_state=seed).fit(x, y))

    def classify(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
        from leanbayes.learn import BayesClassifier

        return BayesClassifier(method, random_state=seed).fit(x, y).predict_proba

    return Contender(title, True, regress, classify)


OURS = {"default": _contender("leanbayes, default", None)} | {
    name: _contender(f"leanbayes, {title}", name) for name, title in _METHODS.items()
}
