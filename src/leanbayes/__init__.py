"""Parameter-efficient Bayesian neural networks for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from leanbayes._version import __version__ as __version__

# What type checkers and readers see; when running, `__getattr__` below imports it.
if TYPE_CHECKING:
    from leanbayes import analysis, corruptions, data, huggingface, metrics, models, nn, ops, report, rl, training
    from leanbayes._estimator_registry import register_estimator
    from leanbayes._kl import kl
    from leanbayes._predict import predict
    from leanbayes._prediction import Prediction
    from leanbayes._quantize import quantize
    from leanbayes._registry import register_posterior, register_prior
    from leanbayes._sampling import Sampling, checkpoint_contexts, current_sampling, fold, sampling, split
    from leanbayes._save import load, save
    from leanbayes._summary import Summary, summary
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
    from leanbayes.learn import BayesClassifier, BayesRegressor
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

# Where each name lives. All of these are imported when the first of them is used, so that `leanbayes --help` need not
# wait for torch.
_CORE = {
    "leanbayes._estimator_registry": ("register_estimator",),
    "leanbayes._kl": ("kl",),
    "leanbayes._predict": ("predict",),
    "leanbayes._pretrained": (),  # converted models of transformers save by it
    "leanbayes._prediction": ("Prediction",),
    "leanbayes._quantize": ("quantize",),
    "leanbayes._registry": ("register_posterior", "register_prior"),
    "leanbayes._sampling": ("Sampling", "checkpoint_contexts", "current_sampling", "fold", "sampling", "split"),
    "leanbayes._save": ("load", "save"),
    "leanbayes._summary": ("Summary", "summary"),
    "leanbayes.convert": (
        "DeepEnsemble",
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
    ),
    "leanbayes.methods": ("Method",),
    "leanbayes.objectives": ("ELBO", "Bernoulli", "Categorical", "Gaussian", "LinearAnneal", "StepAnneal", "Terms"),
    "leanbayes.ops": ("register_op",),
    "leanbayes.posteriors": (
        "ECMP",
        "EMP",
        "BatchEnsemble",
        "DropConnect",
        "KTied",
        "MCDropout",
        "MeanField",
        "Patch",
        "Rank1",
        "VarianceLayer",
        "VariationalDropout",
    ),
    "leanbayes.posteriors._divergence": ("register_kl",),
    "leanbayes.priors": (
        "ARD",
        "Cauchy",
        "HalfCauchy",
        "HeNormal",
        "LogNormal",
        "LogUniform",
        "Normal",
        "Pretrained",
        "Prior",
        "ScaleMixture",
        "StudentT",
    ),
}
# What needs more than torch, or is not needed to train and predict, is imported when it is used itself.
_APART = {"leanbayes.learn": ("BayesClassifier", "BayesRegressor"), "leanbayes.training.capture": ("capture",)}
_PACKAGES = (
    "analysis",
    "corruptions",
    "data",
    "huggingface",
    "metrics",
    "models",
    "nn",
    "ops",
    "report",
    "rl",
    "training",
)


# A type checker reads the imports above: by this function it would take any misspelt name for one that is there.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"leanbayes.{name}")
        for homes in (_CORE, _APART):
            home = next((module for module, names in homes.items() if name in names), None)
            if home is None:
                continue
            for module in homes if homes is _CORE else (home,):
                importlib.import_module(module)
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'leanbayes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
