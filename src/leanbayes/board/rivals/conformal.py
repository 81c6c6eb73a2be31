"""Conformal intervals of MAPIE around gradient boosting; they come without a density."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from leanbayes.bench.peers.adapter import library
from leanbayes.board.contender import LEVEL, Array, Forecast

_HELD_OUT = 0.2


class _Conformal:
    def __init__(self, model: Any) -> None:
        self.model = model

    def forecast(self, x: Array, y: Array) -> Forecast:
        mean, ends = self.model.predict_interval(x)
        return Forecast(mean, ends[:, 0, 0], ends[:, 1, 0], None)


def regressor(x: Array, y: Array, seed: int) -> _Conformal:
    """A fifth of the rows sets the width of the intervals."""
    make = library("mapie.regression").SplitConformalRegressor
    inner, held_out, inner_y, held_out_y = train_test_split(x, y, test_size=_HELD_OUT, random_state=seed)
    model = make(HistGradientBoostingRegressor(random_state=seed), confidence_level=LEVEL, prefit=False)
    return _Conformal(model.fit(inner, inner_y).conformalize(held_out, held_out_y))
