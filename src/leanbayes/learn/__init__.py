"""Scikit-learn estimators around any method: `BayesClassifier` and `BayesRegressor`."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "BayesClassifier and BayesRegressor need scikit-learn; install it with: pip install scikit-learn",
        name=error.name,
    ) from None

from leanbayes.learn.classifier import BayesClassifier
from leanbayes.learn.regressor import BayesRegressor

__all__ = ["BayesClassifier", "BayesRegressor"]
