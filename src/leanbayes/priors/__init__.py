"""Priors: frozen dataclasses, one idea per file."""

from leanbayes.priors._base import Prior
from leanbayes.priors.heavy import ARD, Cauchy, HalfCauchy, LogNormal, LogUniform, StudentT
from leanbayes.priors.normal import CenteredNormal, HeNormal, Normal, NormalPrior, Pretrained, ScaleMixture

__all__ = [
    "ARD",
    "Cauchy",
    "CenteredNormal",
    "HalfCauchy",
    "HeNormal",
    "LogNormal",
    "LogUniform",
    "Normal",
    "NormalPrior",
    "Pretrained",
    "Prior",
    "ScaleMixture",
    "StudentT",
]
