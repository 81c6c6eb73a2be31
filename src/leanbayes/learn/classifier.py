"""The scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import Bunch
from sklearn.utils.multiclass import check_classification_targets
from torch import nn

from leanbayes._checks import is_number
from leanbayes.learn._base import BayesEstimator, merge_repeats
from leanbayes.objectives.likelihoods import Categorical
from leanbayes.posteriors._method import Method


class BayesClassifier(ClassifierMixin, BayesEstimator):
    """A Bayesian neural network that classifies, as a scikit-learn estimator.

    Inputs are standardised inside. Predictions average the probabilities of `samples` networks, drawn jointly with a
    seed fixed by `fit`: the same ones in every call and for every row. Torch's generators are left untouched.

    Args:
        method: A method's name as in `leanbayes compare`, such as "rank1" (with its KL weight, which `kl_weight`
            multiplies), any method of leanbayes, or an ordered mapping of rules to methods; None is "batch-ensemble",
            of 16 members.
        hidden: Units of the hidden layers of a `leanbayes.models.TabularMLP`: a list, or a number for a single layer.
            An empty list makes the model linear.
        module: Builds your own network: ``(in_features, outputs) -> nn.Module``; `hidden` is then ignored.
        epochs: Maximum number of passes through the distinct training examples; "auto" depends on how many there are.
        batch_size: Distinct examples per step; "auto" takes 32 to 256, depending on how many there are.
        lr: Learning rate of AdamW.
        weight_decay: Weight decay of parameters that appear in no KL.
        kl_weight: Weight of the KL, or a schedule of the optimiser step such as `lb.LinearAnneal`.
        early_stopping: Hold out some examples, stop when their NLL stops improving, and keep the best weights. The
            learning rate is constant until then; from the best epoch on, it falls to zero over a third as many epochs.
            Without early stopping, and below 20 examples, training takes all epochs, with a learning rate that falls
            along half a cosine.
        validation_fraction: How much to hold out: a share, or a number of examples; "auto" is a tenth, or up to a fifth
            of small data to reach 100 examples.
        patience: Epochs without a better NLL before training stops; "auto" is at least 10, and enough to make 500
            steps.
        refit: Train again on all examples afterwards, for as many steps as the best weights had taken.
        class_weight: A weight by class, or "balanced", which gives all classes the same sum; multiplies the weights of
            the examples.
        warm_start: Let another `fit` continue from the current weights, with the scaling of the first one; the same
            examples are then divided as before.
        samples: Networks drawn for a prediction; "auto" takes as many as the uncertainty of the training examples
            needs to settle, see `lb.predict`.
        device: Where to train and predict.
        random_state: A seed, a `RandomState`, or None for numpy's global one.
        verbose: Prints the loss and the held-out NLL of every epoch.

    Attributes:
        classes_: Class labels.
        model_: The trained network, in double precision.
        likelihood_: Its likelihood.
        samples_: Number of networks drawn for a prediction.
        seed_: Seed of the predictions.
        loss_curve_: Loss per example of every epoch.
        validation_curve_: NLL per held-out example of every epoch; None where none was held out.
        n_iter_: Number of epochs.
        best_epoch_: The epoch whose weights were kept.
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

    def __init__(
        self,
        method: str | Method | Mapping[Any, Method | None] | None = None,
        *,
        hidden: int | Sequence[int] = (128, 128),
        module: Callable[[int, int], nn.Module] | None = None,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 5e-3,
        weight_decay: float = 3e-4,
        kl_weight: float | Callable[[int], float] = 1.0,
        early_stopping: bool = True,
        validation_fraction: float | Literal["auto"] = "auto",
        patience: int | Literal["auto"] = "auto",
        refit: bool = False,
        class_weight: str | Mapping[Any, float] | None = None,
        warm_start: bool = False,
        samples: int | Literal["auto"] = 32,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            module=module,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            kl_weight=kl_weight,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            refit=refit,
            warm_start=warm_start,
            samples=samples,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Train on examples and their labels.

        Args:
            X: Inputs ``[N, features]``.
            y: Labels of any kind ``[N]``.
            sample_weight: How often each example counts ``[N]``.
            groups: What each example belongs to, such as a patient ``[N]``; all examples of one are held out or none.
        """
        self._check_settings()
        inputs, labels, weights, groups = self._check_data(X, y, sample_weight, groups)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if self._goes_on() and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"warm_start=True continues with the classes {self.classes_.tolist()}, not {classes.tolist()}; fit a "
                "new estimator"
            )
        self.classes_ = classes
        weights = weights * self._class_weights(codes, weights)[codes]
        inputs, codes, weights, groups = merge_repeats(inputs, codes.astype(np.int64), weights, groups)
        self._train(inputs, codes, weights, groups, len(self.classes_), lambda held_out: Categorical())
        return self

    def _class_weights(self, codes: NDArray[np.integer], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The factor of each class."""
        given = self.class_weight
        if given is None:
            return np.ones(len(self.classes_))
        if isinstance(given, str) and given == "balanced":
            sums = np.bincount(codes, weights)
            return sums.sum() / (len(sums) * sums)
        if not isinstance(given, Mapping):
            raise ValueError(
                f"BayesClassifier(class_weight=...) takes None, 'balanced' or a weight by class, not {given!r}"
            )
        known = self.classes_.tolist()
        for label, weight in given.items():
            if label not in known:
                raise ValueError(f"class_weight has the class {label!r}, which no example has; the classes are {known}")
            if not (is_number(weight) and weight > 0):
                raise ValueError(f"class_weight takes positive numbers, not {weight!r} for the class {label!r}")
        return np.array([float(given.get(label, 1.0)) for label in known])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the classes, in the order of `classes_`: ``[N, classes]``."""
        return self._predict(X, lambda prediction: prediction.probs)[0]

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable labels ``[N]``."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def predict_uncertainty(self, X: ArrayLike) -> Bunch:
        """How sure the predictions are, and why: arrays ``[N]`` by name (also as attributes).

        ``confidence`` is the probability of the predicted label. In nats, ``entropy`` is the total uncertainty,
        ``aleatoric`` the part that more data would not remove, and ``mutual_information`` the rest: how much the
        samples disagree.

        Example:
            >>> from sklearn.datasets import load_iris
            >>> X, y = load_iris(return_X_y=True)
            >>> doubt = BayesClassifier("rank1", epochs=20, random_state=0).fit(X, y).predict_uncertainty(X)
            >>> bool(np.allclose(doubt.entropy, doubt.aleatoric + doubt.mutual_information))
            True
        """
        confidence, entropy, aleatoric, mutual = self._predict(
            X,
            lambda prediction: prediction.confidence,
            lambda prediction: prediction.entropy,
            lambda prediction: prediction.aleatoric,
            lambda prediction: prediction.mutual_information,
        )
        return Bunch(confidence=confidence, entropy=entropy, aleatoric=aleatoric, mutual_information=mutual)
