"""The scikit-learn regressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from leanbayes.learn._base import BLOCK, BayesEstimator, merge_repeats
from leanbayes.objectives.likelihoods import Gaussian


class BayesRegressor(MultiOutputMixin, RegressorMixin, BayesEstimator):
    """A Bayesian neural network that predicts real targets with their uncertainty, as a scikit-learn estimator.

    Inputs and targets are standardised inside, predictions are on the scale of the targets. The noise is Gaussian, its
    standard deviation learned. Predictions average `samples` networks that are drawn jointly at a seed fixed by `fit`:
    the same ones at every call and for every row. Torch's generators are left untouched.

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
        model_: The trained network, in double precision, for standardised inputs and targets.
        likelihood_: Its likelihood.
        samples_: Number of networks drawn for a prediction.
        seed_: Seed of the predictions.
        loss_curve_: Loss per example of every epoch.
        input_scaler_: The scaler of the inputs.
        target_scaler_: The scaler of the targets.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, where the training data had any.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> from leanbayes.learn import BayesRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> regressor = BayesRegressor(epochs=20, random_state=0).fit(X, y)
        >>> mean, std = regressor.predict(X, return_std=True)
        >>> mean.shape, bool((std > 0).all()), regressor.predict_quantiles(X, [0.1, 0.9]).shape
        ((442,), True, (442, 2))
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on examples and their targets.

        Args:
            X: Inputs ``[N, features]``.
            y: Targets ``[N]`` or ``[N, outputs]``.
            sample_weight: How often each example counts ``[N]``.
        """
        self._check_settings()
        inputs, targets, weights = self._check_data(X, y, sample_weight, y_numeric=True, multi_output=True)
        self._target_shape = targets.shape[1:]
        columns = targets.astype(np.float64).reshape(len(targets), -1)
        inputs, columns, weights = merge_repeats(inputs, columns, weights)
        self.target_scaler_ = StandardScaler().fit(columns, sample_weight=weights)
        scaled = np.asarray(self.target_scaler_.transform(columns))
        self._train(inputs, scaled, weights, scaled.shape[1], Gaussian("learned", outputs=scaled.shape[1]))
        return self

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> NDArray[np.float64]: ...

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive means, shaped as the targets, and on request the standard deviations of new targets.

        Args:
            X: Inputs ``[N, features]``.
            return_std: Returns the standard deviations, too: noise and model together.
        """
        mean, std = self._predict(X, lambda prediction: prediction.mean, lambda prediction: prediction.std)
        centre, scale = self._target_affine()
        mean = self._shaped(mean * scale + centre)
        return (mean, self._shaped(std * scale)) if return_std else mean

    def predict_quantiles(self, X: ArrayLike, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> NDArray[np.float64]:
        """Quantiles of new targets, with the levels on a last axis where there are several: ``[N, levels]``.

        Args:
            X: Inputs ``[N, features]``.
            q: One level from 0 to 1, or several.
        """
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64)).tolist()
        (values,) = self._predict(X, lambda prediction: prediction.quantile(levels).movedim(0, -1))  # [N, D, levels]
        centre, scale = self._target_affine()
        shaped = self._shaped(values * scale[:, None] + centre[:, None])
        return shaped[..., 0] if np.ndim(q) == 0 else shaped

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Log densities of targets under the predictions, in nats: ``[N]``.

        The density is the mean of those of the networks that are drawn, on the scale of the targets. Given a network,
        several targets of a row are independent.

        Args:
            X: Inputs ``[N, features]``.
            y: Targets, shaped as those of `fit`.
        """
        check_is_fitted(self)
        columns = np.asarray(y, dtype=np.float64)
        if columns.shape[1:] != tuple(self._target_shape) or len(columns) != len(np.asarray(X)):
            wanted = (len(np.asarray(X)), *self._target_shape)
            raise ValueError(f"expected targets of shape {wanted}, as in fit, not {columns.shape}")
        scaled = torch.as_tensor(self.target_scaler_.transform(columns.reshape(len(columns), -1)))
        blocks = iter(scaled.split(BLOCK))
        (found,) = self._predict(X, lambda prediction: prediction.log_prob(next(blocks).to(prediction.mean)))
        return found - np.log(self._target_affine()[1]).sum()

    def _target_affine(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.asarray(self.target_scaler_.mean_), np.asarray(self.target_scaler_.scale_)

    def _shaped(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[N, D, ...]`` without D where the targets had one axis."""
        return values if self._target_shape else values[:, 0]
