"""The scikit-learn classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from leanbayes.learn._base import BayesEstimator, merge_repeats
from leanbayes.objectives.likelihoods import Categorical


class BayesClassifier(ClassifierMixin, BayesEstimator):
    """A Bayesian neural network that classifies, as a scikit-learn estimator.

    Inputs are standardised inside. Predictions average the probabilities of `samples` networks that are drawn jointly
    at a seed fixed by `fit`: the same ones at every call and for every row. Torch's generators are left untouched.

    Args:
        method: Any method of leanbayes, or an ordered mapping of rules to methods; None is ``MeanField()``.
        hidden: Units of the hidden layers of the multilayer perceptron.
        module: Builds another network: ``(in_features, outputs) -> nn.Module``; `hidden` is then not used.
        epochs: Passes through the distinct training examples; the learning rate falls to zero along half a cosine.
        batch_size: Distinct examples per step.
        lr: Learning rate of AdamW.
        weight_decay: Weight decay of parameters that appear in no KL.
        kl_weight: Weight of the KL, or a schedule of the optimiser step such as `lb.LinearAnneal`.
        samples: Networks drawn for a prediction; "auto" takes as many as the uncertainty of the training examples
            needs to settle, see `lb.predict`.
        device: Where to train and predict.
        random_state: A seed, a `RandomState`, or None for numpy's global one.
        verbose: Prints the loss of every epoch.

    Attributes:
        classes_: Class labels.
        model_: The trained network, in double precision.
        likelihood_: Its likelihood.
        samples_: Number of networks drawn for a prediction.
        seed_: Seed of the predictions.
        loss_curve_: Loss per example of every epoch.
        input_scaler_: The scaler of the inputs.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, where the training data had any.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from leanbayes.learn import BayesClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = BayesClassifier(epochs=20, random_state=0).fit(X, y)
        >>> classifier.score(X, y) > 0.9, classifier.predict_proba(X).shape
        (True, (150, 3))
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on examples and their labels.

        Args:
            X: Inputs ``[N, features]``.
            y: Labels of any kind ``[N]``.
            sample_weight: How often each example counts ``[N]``.
        """
        self._check_settings()
        inputs, labels, weights = self._check_data(X, y, sample_weight)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        inputs, codes, weights = merge_repeats(inputs, codes.astype(np.int64), weights)
        self._train(inputs, codes, weights, len(self.classes_), Categorical())
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes_`: ``[N, classes]``."""
        return self._predict(X, lambda prediction: prediction.probs)[0]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable labels ``[N]``."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]
