"""Parameter-efficient Bayesian neural networks for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from leanbayes import _pretrained as _pretrained  # converted models of transformers save by it
from leanbayes import models, nn, ops
from leanbayes._estimator_registry import register_estimator
from leanbayes._kl import kl
from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes._quantize import quantize
from leanbayes._registry import register_posterior, register_prior
from leanbayes._sampling import Sampling, checkpoint_contexts, current_sampling, fold, sampling, split
from leanbayes._save import load, save
from leanbayes._summary import Summary, summary
from leanbayes._version import __version__ as __version__
from leanbayes.convert import (
    DeepEnsemble,
    bayesianize,
    import_model,
    import_state,
    named,
    norms,
    output,
    param_groups,
    point_estimate,
    register_conversion,
    types,
)
from leanbayes.methods import Method
from leanbayes.objectives import ELBO, Bernoulli, Categorical, Gaussian, LinearAnneal, StepAnneal, Terms
from leanbayes.ops import register_op
from leanbayes.posteriors import (
    ECMP,
    EMP,
    BatchEnsemble,
    DropConnect,
    KTied,
    MCDropout,
    MeanField,
    Patch,
    Rank1,
    VarianceLayer,
    VariationalDropout,
)
from leanbayes.posteriors._divergence import register_kl
from leanbayes.priors import (
    ARD,
    Cauchy,
    HalfCauchy,
    HeNormal,
    LogNormal,
    LogUniform,
    Normal,
    Pretrained,
    Prior,
    ScaleMixture,
    StudentT,
)

if TYPE_CHECKING:
    from leanbayes import analysis, corruptions, data, huggingface, metrics, report, rl, training
    from leanbayes.learn import BayesClassifier, BayesRegressor
    from leanbayes.training.capture import capture

__all__ = [
    "ARD",
    "ECMP",
    "ELBO",
    "EMP",
    "BatchEnsemble",
    "BayesClassifier",
    "BayesRegressor",
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
    "Patch",
    "Prediction",
    "Pretrained",
    "Prior",
    "Rank1",
    "Sampling",
    "ScaleMixture",
    "StepAnneal",
    "StudentT",
    "Summary",
    "Terms",
    "VarianceLayer",
    "VariationalDropout",
    "analysis",
    "bayesianize",
    "capture",
    "checkpoint_contexts",
    "corruptions",
    "current_sampling",
    "data",
    "fold",
    "huggingface",
    "import_model",
    "import_state",
    "kl",
    "load",
    "metrics",
    "models",
    "named",
    "nn",
    "norms",
    "ops",
    "output",
    "param_groups",
    "point_estimate",
    "predict",
    "quantize",
    "register_conversion",
    "register_estimator",
    "register_kl",
    "register_op",
    "register_posterior",
    "register_prior",
    "report",
    "rl",
    "sampling",
    "save",
    "split",
    "summary",
    "training",
    "types",
]

# What needs more than torch, or is not needed to train and predict, is imported when it is first used.
_LAZY_PACKAGES = ("analysis", "corruptions", "data", "huggingface", "metrics", "report", "rl", "training")
_LAZY_NAMES = {
    "BayesClassifier": "leanbayes.learn",
    "BayesRegressor": "leanbayes.learn",
    "capture": "leanbayes.training.capture",
}


# A type checker reads the imports above: by this function it would take any misspelt name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LAZY_PACKAGES:
            return importlib.import_module(f"leanbayes.{name}")
        if name in _LAZY_NAMES:
            return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
        raise AttributeError(f"module 'leanbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
