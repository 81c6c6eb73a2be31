"""Conversion of models by type, with selectors and ordered rules, and its inverse."""

from leanbayes.convert.convert import Report, bayesianize, param_groups
from leanbayes.convert.converters import register_conversion
from leanbayes.convert.deep_ensemble import DeepEnsemble
from leanbayes.convert.foreign import import_model, import_state
from leanbayes.convert.point import point_estimate
from leanbayes.convert.selectors import Selector, named, norms, output, types

__all__ = [
    "DeepEnsemble",
    "Report",
    "Selector",
    "bayesianize",
    "import_model",
    "import_state",
    "named",
    "norms",
    "output",
    "param_groups",
    "point_estimate",
    "register_conversion",
    "types",
]
