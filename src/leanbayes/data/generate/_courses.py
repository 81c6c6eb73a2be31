"""How synthetic patients fare in intensive care, and who of them dies: a process that is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._mimic_variables import VARIABLES

# The outcome depends on no later hour.
HOURS = 24
_SYSTEMS = ("circulation", "breathing", "nerves", "kidneys", "blood")


class Usual(NamedTuple):
    """What is usual of a measurement, and by how much a very sick patient differs."""

    value: float
    change: float
    system: str


# In the order of `VARIABLES`.
USUAL = (
    Usual(80, 35, "circulation"), Usual(120, -35, "circulation"), Usual(65, -20, "circulation"),
    Usual(85, -25, "circulation"), Usual(17, 10, "breathing"), Usual(37, 1, "blood"), Usual(97, -7, "breathing"),
    Usual(40, 40, "breathing"), Usual(3.8, -2, "nerves"), Usual(4.5, -3, "nerves"), Usual(5.6, -3, "nerves"),
    Usual(130, 70, "kidneys"), Usual(7.4, -0.15, "kidneys"), Usual(1.5, 5, "circulation"), Usual(1.0, 2, "kidneys"),
    Usual(18, 40, "kidneys"), Usual(139, 5, "kidneys"), Usual(4.1, 1, "kidneys"), Usual(25, -8, "kidneys"),
    Usual(0.8, 5, "blood"), Usual(33, -6, "blood"), Usual(220, -110, "blood"), Usual(9, 9, "blood"),
)  # fmt: skip
_VALUE, _CHANGE = (np.array([getattr(usual, name) for usual in USUAL]) for name in ("value", "change"))
_OWNER = np.array([_SYSTEMS.index(usual.system) for usual in USUAL])
_WINDOW = 6


def courses(rows: int, hours: int, random: np.random.RandomState) -> NDArray[np.float64]:
    """Measurements ``[rows, hours, variables]`` of patients whose five systems get worse or better.

    A system is as sick as the patient is on the whole, and by itself; it has a trend, and wanders. Measurements scatter
    around what that makes of the usual value.
    """
    shape = (rows, 1, len(_SYSTEMS))
    level = 0.3 * random.standard_normal((rows, 1, 1)) + 0.3 * random.standard_normal(shape)
    trend = 0.4 * random.standard_normal(shape) * np.linspace(0, hours / HOURS, hours)[:, None]
    wander = 0.06 * random.standard_normal((rows, hours, len(_SYSTEMS))).cumsum(1)
    sickness = np.clip(0.2 + level + trend + wander, -0.5, 1.8)[:, :, _OWNER]
    scatter = 0.3 * random.standard_normal((rows, hours, len(VARIABLES)))
    return _VALUE + _CHANGE * (sickness + scatter)


def risk_of_death(x: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""The probability by which `write_mimic` draws whether a patient dies, from the record itself.

    .. math:: \sigma(-4.8 + 1.8 \max_k g_k + 1.5 \bar g + 1.5 (g_1 - f_1) + 2 \max(g_1, 0) \max(g_4, 0))

    where :math:`g_k` is the mean over the last six of the first 24 hours, and :math:`f_k` over the first six, of how
    far the measurements of system k are on the way from the usual value to that of a very sick patient. The systems
    are circulation, breathing, nerves, kidneys and blood. What was not measured yet counts as usual.

    Since the outcome depends on nothing else than what `read_mimic` reads, no prediction from the records has a lower
    expected NLL than this probability.

    Args:
        x: Measurements ``[N, T, F]`` as `read_mimic` reads them, all variables first, T at least 24.

    Returns:
        Probabilities ``[N]``.
    """
    if x.ndim != 3 or x.shape[1] < HOURS or x.shape[2] < len(VARIABLES):
        raise ValueError(f"x must be [N, T, F] with at least {HOURS} hours of all {len(VARIABLES)} variables")
    way = np.nan_to_num((x[:, :HOURS, : len(VARIABLES)] - _VALUE) / _CHANGE).clip(-1, 2)
    systems = np.stack([way[:, :, _OWNER == k].mean(2) for k in range(len(_SYSTEMS))], 2)  # [N, T, systems]
    first, last = systems[:, :_WINDOW].mean(1), systems[:, -_WINDOW:].mean(1)
    circulation, kidneys = last[:, 0], last[:, 3]
    logit = -4.8 + 1.8 * last.max(1) + 1.5 * last.mean(1) + 1.5 * (circulation - first[:, 0])
    logit += 2 * circulation.clip(0) * kidneys.clip(0)
    return 1 / (1 + np.exp(-logit))
