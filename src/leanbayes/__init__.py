"""Parameter-efficient Bayesian neural networks for PyTorch."""

from leanbayes import models, nn, ops
from leanbayes._kl import kl, register_kl
from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes._sampling import Sampling, checkpoint_contexts, current_sampling, fold, sampling, split
from leanbayes._save import load, save
from leanbayes._summary import Summary, summary
from leanbayes.convert import (
    bayesianize,
    named,
    norms,
    output,
    param_groups,
    point_estimate,
    register_conversion,
    types,
)
from leanbayes.estimators import register_estimator
from leanbayes.methods import Method, register_posterior, register_prior
from leanbayes.objectives import ELBO, Bernoulli, Categorical, Gaussian, LinearAnneal, StepAnneal, Terms
from leanbayes.ops import register_op
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

__version__ = "0.1.0.dev0"

__all__ = [
    "ARD",
    "ECMP",
    "ELBO",
    "EMP",
    "BatchEnsemble",
    "Bernoulli",
    "Categorical",
    "Cauchy",
    "DeepEnsemble",
    "DropConnect",
    "Gaussian",
    "HalfCauchy",
    "HeNormal",
    "KTied",
    "LinearAnneal",
    "LogNormal",
    "LogUniform",
    "MCDropout",
    "MeanField",
    "Method",
    "Normal",
    "Prediction",
    "Pretrained",
    "Rank1",
    "Sampling",
    "ScaleMixture",
    "StepAnneal",
    "StudentT",
    "Summary",
    "Terms",
    "VarianceLayer",
    "VariationalDropout",
    "bayesianize",
    "checkpoint_contexts",
    "current_sampling",
    "fold",
    "kl",
    "load",
    "models",
    "named",
    "nn",
    "norms",
    "ops",
    "output",
    "param_groups",
    "point_estimate",
    "predict",
    "register_conversion",
    "register_estimator",
    "register_kl",
    "register_op",
    "register_posterior",
    "register_prior",
    "sampling",
    "save",
    "split",
    "summary",
    "types",
]
