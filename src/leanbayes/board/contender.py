"""What a contender on the board has to offer: one shape for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Of the predictive interval that is held against the targets.
LEVEL = 0.9
# Standard deviations on either side of the mean within which a normal variable lies with that probability.
_REACH = 1.6448536269514722


class Forecaster(Protocol):
    """A regression model that is trained."""

    def forecast(self, x: Array, y: Array) -> Forecast:
        """The predictions for inputs ``[N, features]``, and what they say of the targets ``[N]``."""
        ...


class Forecast(NamedTuple):
    """What was predicted of N targets.

    Attributes:
        mean: ``[N]``.
        lower: Lower ends of the 90 % intervals ``[N]``.
        upper: Their upper ends.
        log_density: Log densities of the targets ``[N]``, None for what predicts intervals alone.
    """

    mean: Array
    lower: Array
    upper: Array
    log_density: Array | None


class Gaussians:
    """A forecaster whose predictions are normal distributions.

    Args:
        moments: Means and standard deviations ``[N]`` for inputs ``[N, features]``.
    """

    def __init__(self, moments: Callable[[Array], tuple[Array, Array]]) -> None:
        self.moments = moments

    def forecast(self, x: Array, y: Array) -> Forecast:
        """See `Forecaster`."""
        mean, std = (np.asarray(part, np.float64).reshape(len(x)) for part in self.moments(x))
        density = -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
        return Forecast(mean, mean - _REACH * std, mean + _REACH * std, density)


class Contender(NamedTuple):
    """A way to predict a table.

    Attributes:
        title: Its name in tables.
        ours: Whether it is of this library.
        regress: ``regress(x, y, seed)`` trains a forecaster; None where there is none.
        classify: ``classify(x, y, seed)`` trains a function of inputs to probabilities ``[N, classes]``; None likewise.
        most_rows: Number of training rows above which it is not run.
        on_device: Whether it is trained where the run computes, which both functions take as a fourth argument: what
            takes hours on one core. All others are trained on the CPU.
        most_rows_on_cpu: Number of training rows above which that is left to a GPU.
    """

    title: str
    ours: bool = False
    regress: Callable[..., Forecaster] | None = None
    classify: Callable[..., Callable[[Array], Array]] | None = None
    most_rows: int | None = None
    on_device: bool = False
    most_rows_on_cpu: int | None = None
