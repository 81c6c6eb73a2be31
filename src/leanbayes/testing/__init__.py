"""Conformance suites: a new posterior, prior, op or estimator subclasses one and inherits its checks.

The suites are plain classes that pytest collects through their subclasses; nothing here needs pytest to be installed.
"""

from leanbayes.testing.divergence import check_kl
from leanbayes.testing.estimator import (
    EstimatorSuite,
    check_distribution,
    check_expected_gradient,
    check_folding,
    check_silence,
    silence_,
)
from leanbayes.testing.folding import assert_folds, run_apart, run_folded, sample_streams
from leanbayes.testing.gradients import assert_gradients_match
from leanbayes.testing.op import OpSuite
from leanbayes.testing.posterior import PosteriorSuite, integrate
from leanbayes.testing.prior import PriorSuite, assert_refused
from leanbayes.testing.statistics import (
    assert_close,
    assert_mean_close,
    assert_probability_close,
    assert_same_moments,
    assert_same_quantiles,
    assert_variance_close,
)

__all__ = [
    "EstimatorSuite",
    "OpSuite",
    "PosteriorSuite",
    "PriorSuite",
    "assert_close",
    "assert_folds",
    "assert_gradients_match",
    "assert_mean_close",
    "assert_probability_close",
    "assert_refused",
    "assert_same_moments",
    "assert_same_quantiles",
    "assert_variance_close",
    "check_distribution",
    "check_expected_gradient",
    "check_folding",
    "check_kl",
    "check_silence",
    "integrate",
    "run_apart",
    "run_folded",
    "sample_streams",
    "silence_",
]
