"""Estimators, one per file: how a layer's output is drawn."""

from leanbayes._estimator_registry import Estimator, estimator, estimators_for, register_estimator
from leanbayes.estimators._base import Call, applicable, draw, resolve
from leanbayes.estimators.example import example
from leanbayes.estimators.flipout import flipout
from leanbayes.estimators.local import local
from leanbayes.estimators.rank1 import rank1
from leanbayes.estimators.weight import weight

__all__ = [
    "Call",
    "Estimator",
    "applicable",
    "draw",
    "estimator",
    "estimators_for",
    "example",
    "flipout",
    "local",
    "rank1",
    "register_estimator",
    "resolve",
    "weight",
]
