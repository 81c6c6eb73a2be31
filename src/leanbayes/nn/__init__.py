"""Converted layers: the generic one, and those for modules that need code of their own."""

from leanbayes.nn.attention import AttentionLayer
from leanbayes.nn.cells import CellLayer
from leanbayes.nn.component_norm import ComponentBatchNorm
from leanbayes.nn.dropout import DropoutLayer
from leanbayes.nn.ensemble import Ensemble
from leanbayes.nn.foreign_norm import ForeignNormLayer
from leanbayes.nn.layer import BayesianLayer
from leanbayes.nn.norm import NormLayer
from leanbayes.nn.recurrent import RecurrentLayer
from leanbayes.nn.side_by_side import SideBySide
from leanbayes.nn.wrapper import BilinearLayer, WrappedLayer

__all__ = [
    "AttentionLayer",
    "BayesianLayer",
    "BilinearLayer",
    "CellLayer",
    "ComponentBatchNorm",
    "DropoutLayer",
    "Ensemble",
    "ForeignNormLayer",
    "NormLayer",
    "RecurrentLayer",
    "SideBySide",
    "WrappedLayer",
]
