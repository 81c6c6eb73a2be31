"""Estimators, one per file: how a layer's output is drawn."""

from leanbayes.estimators._base import applicable, estimator, register_estimator, resolve
from leanbayes.estimators.example import example
from leanbayes.estimators.flipout import flipout
from leanbayes.estimators.local import local
from leanbayes.estimators.rank1 import rank1
from leanbayes.estimators.weight import weight

__all__ = ["applicable", "estimator", "example", "flipout", "local", "rank1", "register_estimator", "resolve", "weight"]
