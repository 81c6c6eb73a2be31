"""The scikit-learn regressor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from leanbayes._checks import check_choice, is_number
from leanbayes.learn._base import BLOCK, BayesEstimator, merge_repeats
from leanbayes.objectives.likelihoods import Gaussian
from leanbayes.posteriors._method import Method

NOISES = ("constant", "heteroscedastic")


class BayesRegressor(MultiOutputMixin, RegressorMixin, BayesEstimator):
    """A Bayesian neural network that predicts real targets with their uncertainty, as a scikit-learn estimator.

    Inputs and targets are standardised inside, predictions are on the scale of the targets. The noise is Gaussian. The
    network predicts its standard deviation for each row, times a factor fitted to examples that were not trained on.
    Predictions average `samples` networks, drawn jointly with a seed fixed by `fit`: the same ones in every call and
    for every row. Torch's generators are left untouched.

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
        noise: "constant", one for each output, or "heteroscedastic", which the network predicts for each example.
            Either is fitted to the held-out examples in the end, where there are any.
        warm_start: Let another `fit` continue from the current weights, with the scaling of the first one; the same
            examples are then divided as before.
        samples: Networks drawn for a prediction; "auto" takes as many as the uncertainty of the training examples
            needs to settle, see `lb.predict`.
        device: Where to train and predict.
        random_state: A seed, a `RandomState`, or None for numpy's global one.
        verbose: Prints the loss and the held-out NLL of every epoch.

    Attributes:
        model_: The trained network, in double precision, for standardised inputs and targets.
        likelihood_: Its likelihood.
        samples_: Number of networks drawn for a prediction.
        seed_: Seed of the predictions.
        loss_curve_: Loss per example of every epoch.
        validation_curve_: NLL per held-out example of every epoch; None where none was held out.
        n_iter_: Number of epochs.
        best_epoch_: The epoch whose weights were kept.
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
        noise: Literal["constant", "heteroscedastic"] = "heteroscedastic",
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
        self.noise = noise

    def _network_settings(self) -> dict[str, Any]:
        return super()._network_settings() | {"noise": self.noise}

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Train on examples and their targets.

        Args:
            X: Inputs ``[N, features]``.
            y: Targets ``[N]`` or ``[N, outputs]``.
            sample_weight: How often each example counts ``[N]``.
            groups: What each example belongs to, such as a patient ``[N]``; all examples of one are held out or none.
        """
        self._check_settings()
        check_choice(self, NOISES, noise=self.noise)
        inputs, targets, weights, groups = self._check_data(
            X, y, sample_weight, groups, y_numeric=True, multi_output=True
        )
        columns = targets.astype(np.float64).reshape(len(targets), -1)
        inputs, columns, weights, groups = merge_repeats(inputs, columns, weights, groups)
        if not self._goes_on():
            self._target_shape = targets.shape[1:]
            self.target_scaler_ = StandardScaler().fit(columns, sample_weight=weights)
        elif targets.shape[1:] != self._target_shape:
            raise ValueError(
                f"warm_start=True continues with targets of shape {('N', *self._target_shape)}, not "
                f"{('N', *targets.shape[1:])}; fit a new estimator"
            )
        scaled = np.asarray(self.target_scaler_.transform(columns))
        outputs = scaled.shape[1]

        def likelihood(held_out: bool) -> Gaussian:
            if self.noise == "heteroscedastic":
                return Gaussian(held_out=held_out, outputs=outputs if held_out else None)
            return Gaussian("learned", outputs=outputs, held_out=held_out)

        width = 2 * outputs if self.noise == "heteroscedastic" else outputs
        self._train(inputs, scaled, weights, groups, width, likelihood)
        return self

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> NDArray[np.float64]: ...

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive means, shaped like the targets, and on request the standard deviations of new targets.

        Args:
            X: Inputs ``[N, features]``.
            return_std: Also return the standard deviations: noise and model together.
        """
        mean, std = self._predict(X, lambda prediction: prediction.mean, lambda prediction: prediction.std)
        centre, scale = self._target_affine()
        mean = self._shaped(mean * scale + centre)
        return (mean, self._shaped(std * scale)) if return_std else mean

    def predict_quantiles(self, X: ArrayLike, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> NDArray[np.float64]:
        """Quantiles of new targets; several levels are on the last axis: ``[N, levels]``.

        Args:
            X: Inputs ``[N, features]``.
            q: One level from 0 to 1, or several.
        """
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64)).tolist()
        (values,) = self._predict(X, lambda prediction: prediction.quantile(levels).movedim(0, -1))  # [N, D, levels]
        centre, scale = self._target_affine()
        shaped = self._shaped(values * scale[:, None] + centre[:, None])
        return shaped[..., 0] if np.ndim(q) == 0 else shaped

    def predict_uncertainty(self, X: ArrayLike, level: float = 0.9) -> Bunch:
        """How sure the predictions are, and why: arrays shaped like the targets, by name (also as attributes).

        ``mean``, ``std`` (noise and model together), ``lower`` and ``upper`` (the central interval that holds a new
        target with probability `level`), and in nats ``entropy`` with its two parts: ``aleatoric``, the noise, and
        ``mutual_information``, the disagreement between samples, which more data would settle.

        Args:
            X: Inputs ``[N, features]``.
            level: Probability of the interval, above 0 and below 1.

        Example:
            >>> from sklearn.datasets import load_diabetes
            >>> X, y = load_diabetes(return_X_y=True)
            >>> doubt = BayesRegressor("rank1", epochs=20, random_state=0).fit(X, y).predict_uncertainty(X)
            >>> bool(((doubt.lower < doubt.mean) & (doubt.mean < doubt.upper)).all())
            True
        """
        if not (is_number(level) and 0 < level < 1):
            raise ValueError(f"predict_uncertainty(level=...) takes a number above 0 and below 1, not {level!r}")
        tails = [0.5 - 0.5 * level, 0.5 + 0.5 * level]
        mean, std, entropy, aleatoric, mutual, bounds = self._predict(
            X,
            lambda prediction: prediction.mean,
            lambda prediction: prediction.std,
            lambda prediction: prediction.entropy,
            lambda prediction: prediction.aleatoric,
            lambda prediction: prediction.mutual_information,
            lambda prediction: prediction.quantile(tails).movedim(0, -1),
        )
        centre, scale = self._target_affine()
        lower, upper = np.moveaxis(bounds * scale[:, None] + centre[:, None], -1, 0)
        found = {"mean": mean * scale + centre, "std": std * scale, "lower": lower, "upper": upper}
        # The entropy of a density depends on the unit.
        found |= {"entropy": entropy + np.log(scale), "aleatoric": aleatoric + np.log(scale)}
        found["mutual_information"] = mutual
        return Bunch(**{name: self._shaped(values) for name, values in found.items()})

    def log_density(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Log densities of targets under the predictions, in nats: ``[N]``.

        The density is averaged over the drawn networks, on the scale of the targets. Given a network, the targets of a
        row are independent.

        Args:
            X: Inputs ``[N, features]``.
            y: Targets, shaped like those of `fit`.
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
