"""Metrics as pure functions of tensors.

They compute in float64 and return float32 scalars without gradients. Metrics of classes take probabilities ``[B, C]``
(or the probability of a yes, ``[B]``) or a `Prediction`, and labels ``[B]``.
"""

from leanbayes.metrics.functional.calibration import (
    ReliabilityTable,
    adaptive_calibration_error,
    expected_calibration_error,
    max_calibration_error,
    reliability_table,
    thresholded_calibration_error,
)
from leanbayes.metrics.functional.classification import accuracy, brier, nll
from leanbayes.metrics.functional.corruption import (
    IntensityTable,
    corruption_errors,
    intensity_table,
    mean_corruption_error,
    relative_mean_corruption_error,
)
from leanbayes.metrics.functional.density import log_predictive_density
from leanbayes.metrics.functional.diversity import disagreement, normalised_disagreement
from leanbayes.metrics.functional.paired import PairedTest, paired_test
from leanbayes.metrics.functional.ranking import average_precision, ood_auroc, ood_fpr, ood_score
from leanbayes.metrics.functional.regression import central_interval, coverage, interval_width, rmse

__all__ = [
    "IntensityTable",
    "PairedTest",
    "ReliabilityTable",
    "accuracy",
    "adaptive_calibration_error",
    "average_precision",
    "brier",
    "central_interval",
    "corruption_errors",
    "coverage",
    "disagreement",
    "expected_calibration_error",
    "intensity_table",
    "interval_width",
    "log_predictive_density",
    "max_calibration_error",
    "mean_corruption_error",
    "nll",
    "normalised_disagreement",
    "ood_auroc",
    "ood_fpr",
    "ood_score",
    "paired_test",
    "relative_mean_corruption_error",
    "reliability_table",
    "rmse",
    "thresholded_calibration_error",
]
