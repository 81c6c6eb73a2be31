"""Posterior families, one per file: the method users write, its distribution, its KL divergences."""

from leanbayes.posteriors import _gaussian_kl as _gaussian_kl
from leanbayes.posteriors._base import Dirac, Elementwise, Factors, Moments, Posterior
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors.dropout import DropConnect, MCDropout
from leanbayes.posteriors.k_tied import KTied
from leanbayes.posteriors.mean_field import MeanField
from leanbayes.posteriors.patch_methods import ECMP, EMP, Patch
from leanbayes.posteriors.rank1 import BatchEnsemble, Rank1
from leanbayes.posteriors.variance import VarianceLayer
from leanbayes.posteriors.variational_dropout import VariationalDropout

__all__ = [
    "ECMP",
    "EMP",
    "BatchEnsemble",
    "Dirac",
    "DropConnect",
    "Elementwise",
    "Factors",
    "GaussianPosterior",
    "KTied",
    "MCDropout",
    "MeanField",
    "Moments",
    "Patch",
    "Posterior",
    "Rank1",
    "VarianceLayer",
    "VariationalDropout",
]
