"""Parameter-efficient Bayesian neural networks for PyTorch."""

from leanbayes import nn, ops
from leanbayes._kl import kl, register_kl
from leanbayes._sampling import checkpoint_contexts, current_sampling, fold, sampling, split
from leanbayes.convert import bayesianize, named, norms, output, param_groups, point_estimate, types
from leanbayes.posteriors import (
    ECMP,
    EMP,
    BatchEnsemble,
    DeepEnsemble,
    DropConnect,
    KTied,
    MCDropout,
    MeanField,
    Rank1,
    VarianceLayer,
    VariationalDropout,
)
from leanbayes.priors import (
    ARD,
    Cauchy,
    HalfCauchy,
    HeNormal,
    LogNormal,
    LogUniform,
    Normal,
    Pretrained,
    ScaleMixture,
    StudentT,
)
