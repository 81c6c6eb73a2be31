"""Metrics: torchmetrics classes that gather batches and ranks, over the pure functions in `functional`.

The classes need torchmetrics (``pip install 'leanbayes[metrics]'``), which is imported with the first of them; the
functions need torch alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leanbayes.metrics import functional

if TYPE_CHECKING:
    from leanbayes.metrics.calibration import ACE, ECE, MCE, TCE, Reliability
    from leanbayes.metrics.classification import NLL, Accuracy, Brier
    from leanbayes.metrics.corruption import MeanCorruptionError, RelativeMeanCorruptionError
    from leanbayes.metrics.density import LogPredictiveDensity
    from leanbayes.metrics.diversity import Disagreement, NormalisedDisagreement
    from leanbayes.metrics.ranking import AUCPR, OODAUROC, OODFPR
    from leanbayes.metrics.regression import RMSE, Coverage, IntervalWidth

__all__ = [
    "ACE",
    "AUCPR",
    "ECE",
    "MCE",
    "NLL",
    "OODAUROC",
    "OODFPR",
    "RMSE",
    "TCE",
    "Accuracy",
    "Brier",
    "Coverage",
    "Disagreement",
    "IntervalWidth",
    "LogPredictiveDensity",
    "MeanCorruptionError",
    "NormalisedDisagreement",
    "RelativeMeanCorruptionError",
    "Reliability",
    "functional",
]

_FILES = {
    "calibration": ("ACE", "ECE", "MCE", "TCE", "Reliability"),
    "classification": ("NLL", "Accuracy", "Brier"),
    "corruption": ("MeanCorruptionError", "RelativeMeanCorruptionError"),
    "density": ("LogPredictiveDensity",),
    "diversity": ("Disagreement", "NormalisedDisagreement"),
    "ranking": ("AUCPR", "OODAUROC", "OODFPR"),
    "regression": ("RMSE", "Coverage", "IntervalWidth"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}


# Not for type checkers, which would take any misspelt name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _FILE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"{__name__}.{_FILE_OF[name]}")
        except ModuleNotFoundError as error:
            if error.name != "torchmetrics":
                raise
            raise ImportError(
                f"leanbayes.metrics.{name} needs torchmetrics: pip install 'leanbayes[metrics]'"
            ) from error
        return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
