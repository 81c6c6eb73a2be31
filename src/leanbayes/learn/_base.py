"""What both estimators share: scaling, the training loop and joint prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from leanbayes._checks import check_count, check_number, check_positive
from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes._sampling import SeededRandom, sampling
from leanbayes.convert import bayesianize, param_groups
from leanbayes.models.mlp import MLP
from leanbayes.objectives import ELBO
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.posteriors import MeanField
from leanbayes.posteriors._method import Method
from leanbayes.training.capture import capture

Array = NDArray[Any]

# Rows predicted at once: all samples of so many rows are held in memory.
BLOCK = 4096


class BayesEstimator(BaseEstimator):
    """Settings, training and prediction; see `BayesClassifier` and `BayesRegressor`."""

    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        method: Method | Mapping[Any, Method | None] | None = None,
        *,
        hidden: Sequence[int] = (64, 64),
        module: Callable[[int, int], nn.Module] | None = None,
        epochs: int = 200,
        batch_size: int = 32,
        lr: float = 1e-2,
        weight_decay: float = 1e-4,
        kl_weight: float | Callable[[int], float] = 1.0,
        samples: int | Literal["auto"] = 32,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        # Scikit-learn's rule: arguments are stored as they come and checked in `fit`.
        self.method = method
        self.hidden = hidden
        self.module = module
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.kl_weight = kl_weight
        self.samples = samples
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_settings(self) -> None:
        """Check what neither the network nor the ELBO checks."""
        names = ("epochs", "batch_size", *(() if self.samples == "auto" else ("samples",)))
        check_count(self, **{name: _plain(getattr(self, name)) for name in names})
        check_positive(self, lr=_plain(self.lr))
        check_number(self, 0, weight_decay=_plain(self.weight_decay))
        if not callable(self.kl_weight):
            check_number(self, 0, kl_weight=_plain(self.kl_weight))

    def _check_data(self, X: Any, y: Any, sample_weight: Any, **checks: Any) -> tuple[Array, Array, Array]:
        """Inputs, targets and weights of the examples that count at all."""
        X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counts = weights > 0
        if not counts.any():
            raise ValueError("every sample_weight is zero; at least one example must count")
        return np.asarray(X)[counts], np.asarray(y)[counts], weights[counts]

    def _train(self, X: Array, y: Array, weights: Array, outputs: int, likelihood: Likelihood) -> None:
        """Train a new network on standardised inputs ``[N, features]`` and targets ``[N, ...]``."""
        device = torch.device(self.device)
        random = check_random_state(self.random_state)
        self.seed_ = int(random.randint(2**31 - 1))
        self.input_scaler_ = StandardScaler().fit(X, sample_weight=weights)
        inputs = torch.as_tensor(self.input_scaler_.transform(X), dtype=torch.float32, device=device)
        targets = torch.as_tensor(y, dtype=None if y.dtype == np.int64 else torch.float32, device=device)
        # The ELBO of the weighted examples is sum(weights * nll) + kl, here over sum(weights).
        mean_weight = float(weights.mean())
        counts = torch.as_tensor(weights / mean_weight, dtype=torch.float32, device=device)
        seed = int(random.randint(2**31 - 1))
        with SeededRandom(seed):
            model = bayesianize(self._network(outputs), MeanField() if self.method is None else self.method)
            elbo = ELBO(model, len(X), likelihood, _scaled(self.kl_weight, 1 / mean_weight)).to(device)
        # Sources of its own: estimators may be trained in several threads at once.
        order, noise = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed + 1)
        with sampling(generator=noise):
            self.loss_curve_ = self._loop(elbo, inputs, targets, counts, order)
        # Subsets give the same predictions up to rounding, which double precision makes negligible; Apple's GPUs
        # have none.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.model_ = elbo.model.to(dtype).eval()
        self.likelihood_ = elbo.likelihood
        self.samples_ = self._enough_samples(inputs.to(dtype))

    def _enough_samples(self, inputs: Tensor) -> int:
        """The number of samples; "auto" is settled on training inputs, so that no prediction depends on its rows."""
        if self.samples != "auto":
            return int(self.samples)
        settings: dict[str, Any] = {"likelihood": self.likelihood_, "seed": self.seed_, "joint": True}
        return predict(self.model_, inputs[:BLOCK], "auto", keep="summary", **settings).samples

    def _network(self, outputs: int) -> nn.Module:
        if self.module is not None:
            return self.module(self.n_features_in_, outputs)
        return MLP(self.n_features_in_, [_plain(units) for units in self.hidden], outputs)

    def _loop(self, elbo: ELBO, inputs: Tensor, targets: Tensor, counts: Tensor, order: torch.Generator) -> list[float]:
        """Minimise the loss; its mean over each epoch."""
        optimiser = torch.optim.AdamW(param_groups(elbo, float(self.lr), float(self.weight_decay)))
        epochs, curve = int(self.epochs), []
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
        elbo.train()
        step = capture(elbo, optimiser, compile=False)  # recorded on a GPU
        for epoch in range(epochs):
            total = torch.zeros((), dtype=torch.float64, device="cpu" if inputs.device.type == "mps" else inputs.device)
            for batch in torch.randperm(len(inputs), generator=order).to(inputs.device).split(int(self.batch_size)):
                loss = step(inputs[batch], targets[batch], weights=counts[batch]).loss
                total += loss.detach().to(total) * len(batch)
            schedule.step()
            curve.append(float(total) / len(inputs))
            if self.verbose:
                print(f"epoch {epoch + 1}/{epochs}: loss {curve[-1]:.4f}")
        return curve

    def _predict(self, X: Any, *read: Callable[[Prediction], Tensor]) -> list[Array]:
        """What `read` takes from the prediction of each block of rows; all samples are the same functions for all rows.

        `read` returns tensors with the rows in front.
        """
        check_is_fitted(self)
        scaled = self.input_scaler_.transform(validate_data(self, X, dtype=np.float64, reset=False))
        like = next(self.model_.parameters())
        pieces: list[list[Array]] = [[] for _ in read]
        for block in torch.as_tensor(scaled).split(BLOCK):
            prediction = predict(
                self.model_,
                block.to(like.device, like.dtype),
                self.samples_ if self.samples == "auto" else _plain(self.samples),
                likelihood=self.likelihood_,
                seed=self.seed_,
                joint=True,
            )
            for part, take in zip(pieces, read):
                part.append(take(prediction).detach().cpu().double().numpy())
        return [np.concatenate(part) for part in pieces]


def merge_repeats(X: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The distinct examples in an order of their own, with the sums of their weights.

    So that an example of weight k trains bit for bit as k copies do, and the order of the rows does not matter.

    Example:
        >>> X, y = np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 1.0, 0.0])
        >>> [part.ravel().tolist() for part in merge_repeats(X, y, np.ones(3))]
        [[2.0, 1.0], [0.0, 1.0], [2.0, 1.0]]
    """
    # Adding zero turns -0.0, which has other bytes, into 0.0.
    rows = np.ascontiguousarray(np.column_stack([X, y]) + 0.0)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return X[first], y[first], np.bincount(inverse, weights)


def _plain(value: Any) -> Any:
    # Searches over arrays of settings pass numpy's numbers.
    return value.item() if isinstance(value, np.generic) else value


def _scaled(weight: float | Callable[[int], float], factor: float) -> float | Callable[[int], float]:
    return (lambda step: weight(step) * factor) if callable(weight) else float(weight) * factor
