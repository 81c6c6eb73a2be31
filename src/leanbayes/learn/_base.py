"""What both estimators share: settings, data, training and joint prediction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from leanbayes._checks import check_choice, check_count, check_number, check_positive
from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes._sampling import SeededRandom, sampling
from leanbayes.compare.networks import build_network
from leanbayes.convert import bayesianize, param_groups
from leanbayes.data import Schema
from leanbayes.learn._defaults import DEFAULT_METHOD, batch_size_for, epochs_for
from leanbayes.learn._loop import Loop, Rows
from leanbayes.learn._methods import named_method
from leanbayes.models import MLP, TabularMLP
from leanbayes.objectives import ELBO
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.posteriors._method import Method
from leanbayes.training.capture import capture
from leanbayes.training.holdout import check_hold_out, divide

Array = NDArray[Any]

# Rows predicted at once: all samples of so many rows are held in memory.
BLOCK = 4096


class BayesEstimator(BaseEstimator):
    """Settings, training and prediction; see `BayesClassifier` and `BayesRegressor`."""

    n_features_in_: int
    feature_names_in_: Array

    def __init__(
        self,
        method: str | Method | Mapping[Any, Method | None] | None,
        *,
        hidden: int | Sequence[int],
        module: Callable[[int, int], nn.Module] | None,
        epochs: int | Literal["auto"],
        batch_size: int | Literal["auto"],
        lr: float,
        weight_decay: float,
        kl_weight: float | Callable[[int], float],
        early_stopping: bool,
        validation_fraction: float | Literal["auto"],
        patience: int | Literal["auto"],
        refit: bool,
        warm_start: bool,
        samples: int | Literal["auto"],
        device: str | torch.device,
        random_state: int | np.random.RandomState | None,
        verbose: bool,
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
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.refit = refit
        self.warm_start = warm_start
        self.samples = samples
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_settings(self) -> None:
        """Check what neither the network nor the ELBO checks."""
        counts = {name: _plain(getattr(self, name)) for name in ("epochs", "batch_size", "patience", "samples")}
        check_count(self, **{name: value for name, value in counts.items() if value != "auto"})
        check_positive(self, lr=_plain(self.lr))
        check_number(self, 0, weight_decay=_plain(self.weight_decay))
        check_choice(self, (False, True), early_stopping=self.early_stopping, refit=self.refit)
        check_choice(self, (False, True), warm_start=self.warm_start)
        check_hold_out(f"{type(self).__name__}(validation_fraction=...)", _plain(self.validation_fraction))
        self._check_device()
        if not callable(self.kl_weight):
            check_number(self, 0, kl_weight=_plain(self.kl_weight))
        if self._goes_on():
            self._check_same_network()
        if self.refit and not self.early_stopping:
            raise ValueError(
                f"{type(self).__name__}(refit=True) trains again on all rows after early stopping, which is off; leave "
                "one of the two out"
            )

    def _check_data(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, **checks: Any
    ) -> tuple[Array, Array, Array, Array | None]:
        """Inputs, targets, weights, and numbers of the groups of the examples that count at all."""
        X, y = validate_data(self, X, y, dtype=np.float64, reset=not self._goes_on(), **checks)
        weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counts = weights > 0
        if not counts.any():
            raise ValueError("every sample_weight is zero; at least one example must count")
        if groups is not None:
            check_consistent_length(X, groups)
            groups = np.unique(column_or_1d(groups), return_inverse=True)[1][counts]
        return np.asarray(X)[counts], np.asarray(y)[counts], weights[counts], groups

    def _check_device(self) -> None:
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without CUDA
            raise ValueError(
                f"{type(self).__name__}(device={self.device!r}) is no device that torch can use here: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def _network_settings(self) -> dict[str, Any]:
        """The settings that decide which network is trained."""
        return {"method": self.method, "hidden": self._layers(), "module": self.module}

    def _check_same_network(self) -> None:
        now = self._network_settings()
        for name, built in self._built_with.items():
            if now[name] != built:
                raise ValueError(
                    f"warm_start=True continues with the network of the first fit, but {name} has changed from "
                    f"{built!r} to {now[name]!r}; set it back, or fit a new estimator"
                )

    def _goes_on(self) -> bool:
        """Whether training starts from the weights that are there."""
        return bool(self.warm_start) and hasattr(self, "model_")

    def _train(
        self,
        X: Array,
        y: Array,
        weights: Array,
        groups: Array | None,
        outputs: int,
        make_likelihood: Callable[[bool], Likelihood],
    ) -> None:
        """Train a network on inputs ``[N, features]``, which are standardised, and targets ``[N, ...]``.

        `make_likelihood` is told whether there are held-out rows.
        """
        device = torch.device(self.device)
        random = check_random_state(self.random_state)
        self.seed_ = int(random.randint(2**31 - 1))
        seed = int(random.randint(2**31 - 1))
        goes_on = self._goes_on()
        if not goes_on:
            self._built_with = self._network_settings()
            # Later fits on the same examples hold out the same, which no fit has trained on.
            self._division_seed = seed
            self.input_scaler_ = StandardScaler().fit(X, sample_weight=weights)
            self._varies = X.min(0) < X.max(0)
        share = _plain(self.validation_fraction) if self.early_stopping else 0
        kept, held = divide(len(X), share, self._division_seed, y if y.dtype == np.int64 else None, groups)
        with SeededRandom(seed):
            model, kl_weight = self._start(X, outputs, goes_on)
            model, likelihood = model.to(device), make_likelihood(len(held) > 0).to(device)
        if goes_on:
            likelihood.load_state_dict(self.likelihood_.state_dict(), strict=False)
        batch_size = batch_size_for(len(kept)) if self.batch_size == "auto" else int(self.batch_size)
        epochs = epochs_for(len(kept), batch_size) if self.epochs == "auto" else int(self.epochs)
        # Sources of its own: estimators may be trained in several threads at once.
        order, noise = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed + 1)

        def make_loop(index: Array) -> tuple[Loop, Rows]:
            # The ELBO of the weighted examples is sum(weights * nll) + kl, here over sum(weights).
            mean_weight = float(weights[index].mean())
            elbo = ELBO(model, len(index), likelihood, _scaled(kl_weight, 1 / mean_weight)).to(device).train()
            groups = param_groups(elbo, float(self.lr), float(self.weight_decay))
            optimizer = torch.optim.AdamW(groups, fused=device.type == "cpu" or None)
            step = capture(elbo, optimizer, compile=False)  # recorded on a GPU
            loop = Loop(elbo, step, optimizer, batch_size, order, seed, lambda record: self._report(record, epochs))
            return loop, self._rows(X[index], y[index], weights[index] / mean_weight)

        start = copy.deepcopy((model.state_dict(), dict(likelihood.named_parameters()))) if self.refit else ({}, {})
        held_rows = self._rows(X[held], y[held], weights[held]) if len(held) else None
        self.likelihood_ = likelihood
        with sampling(generator=noise):
            loop, rows = make_loop(kept)
            if held_rows is None:
                loop.run(rows, epochs)
            else:
                loop.run_until_worse(rows, held_rows, epochs, _plain(self.patience))
        self._finish(model, X, held_rows)
        if self.refit and held_rows is not None:
            weights_then, noise_then = start
            model.float().load_state_dict(weights_then)
            likelihood.load_state_dict(noise_then, strict=False)  # what is fitted to held-out rows stays
            with sampling(generator=noise):
                again, rows = make_loop(np.arange(len(X)))
                again.run_steps(rows, loop.history.best["step"], loop.rate)
            self._finish(model, X, None)
        history = loop.history
        self.loss_curve_ = history["loss"]
        self.validation_curve_ = history["valid_nll"] if held_rows is not None else None
        self.n_iter_ = len(history)
        self.best_epoch_ = history.best["epoch"] if held_rows is not None else len(history)

    def _standardised(self, X: Array) -> Array:
        """Inputs as the network sees them: 0 where a feature never varied in training, whatever its value is now."""
        return np.where(self._varies, self.input_scaler_.transform(X), 0.0)

    def _rows(self, X: Array, y: Array, weights: Array) -> Rows:
        """Examples on the device, inputs standardised."""
        inputs = torch.as_tensor(self._standardised(X), dtype=torch.float32)
        targets = torch.as_tensor(y, dtype=None if y.dtype == np.int64 else torch.float32)
        parts = (inputs, targets, torch.as_tensor(weights, dtype=torch.float32))
        return Rows(*(part.to(self.device) for part in parts))

    def _start(self, X: Array, outputs: int, goes_on: bool) -> tuple[nn.Module, float | Callable[[int], float]]:
        """The network to train, and the weight of its KL."""
        name = DEFAULT_METHOD if self.method is None else self.method
        preset = named_method(name).suited("table") if isinstance(name, str) else None
        weight = _scaled(self.kl_weight, preset.kl_weight if preset else 1.0)
        if goes_on:
            return copy.deepcopy(self.model_).float().train(), weight
        network = self._network(outputs, len(X))
        if isinstance(network, TabularMLP):
            network.fit_bins_(torch.as_tensor(self._standardised(X), dtype=torch.float32))
        if preset is not None:
            return preset.convert(network), weight
        assert self.method is not None and not isinstance(self.method, str)
        return bayesianize(network, self.method), weight

    def _network(self, outputs: int, rows: int) -> nn.Module:
        features, hidden = self.n_features_in_, self._layers()
        if self.module is not None:
            return self.module(features, outputs)
        schema = Schema("regression", "table", (features,))
        if not hidden:
            return MLP(features, hidden, outputs)
        return build_network(schema, hidden=hidden, outputs=outputs, rows=rows)

    def _layers(self) -> list[int]:
        """Units of each hidden layer; a number stands for one layer."""
        given = _plain(self.hidden)
        layers = [_plain(units) for units in (given if isinstance(given, Iterable) else [given])]
        if not all(isinstance(units, int) and not isinstance(units, bool) and units > 0 for units in layers):
            raise ValueError(
                f"{type(self).__name__}(hidden=...) takes the units of each layer, such as (128, 128), not {given!r}"
            )
        return layers

    def _report(self, record: dict[str, float], epochs: int) -> None:
        if self.verbose:
            held = f", held-out NLL {record['valid_nll']:.4f}" if "valid_nll" in record else ""
            print(f"epoch {record['epoch']}/{epochs}: loss {record['loss']:.4f}{held}")

    def _finish(self, model: nn.Module, X: Array, held: Rows | None) -> None:
        """Make the network predict, with the noise of the held-out rows under just these predictions."""
        # Subsets give the same predictions up to rounding, which double precision makes negligible; Apple's GPUs
        # have none.
        dtype = torch.float32 if torch.device(self.device).type == "mps" else torch.float64
        self.model_ = model.to(dtype).eval()
        self.samples_ = self._enough_samples(X)
        if held is not None and self.likelihood_.fits_held_out:
            outputs = [self._predict_block(block).outputs for block in held.x.to(dtype).split(BLOCK)]
            self.likelihood_.fit_held_out_(torch.cat(outputs, 1), held.y, held.weights)

    def _enough_samples(self, X: Array) -> int:
        """The number of samples; "auto" is settled on training inputs, so that no prediction depends on its rows."""
        if self.samples != "auto":
            return int(self.samples)
        inputs = torch.as_tensor(self._standardised(X[:BLOCK])).to(next(self.model_.parameters()))
        settings: dict[str, Any] = {"likelihood": self.likelihood_, "seed": self.seed_, "joint": True}
        return predict(self.model_, inputs, "auto", keep="summary", **settings).samples

    def _predict(self, X: Any, *read: Callable[[Prediction], Tensor]) -> list[Array]:
        """What `read` takes from the prediction of each block of rows; all samples are the same functions for all rows.

        `read` returns tensors with the rows in front.
        """
        check_is_fitted(self)
        scaled = self._standardised(np.asarray(validate_data(self, X, dtype=np.float64, reset=False)))
        like = next(self.model_.parameters())
        pieces: list[list[Array]] = [[] for _ in read]
        for block in torch.as_tensor(scaled).split(BLOCK):
            prediction = self._predict_block(block.to(like.device, like.dtype))
            for part, take in zip(pieces, read):
                part.append(take(prediction).detach().cpu().double().numpy())
        return [np.concatenate(part) for part in pieces]

    def _predict_block(self, inputs: Tensor) -> Prediction:
        samples = self.samples_ if self.samples == "auto" else _plain(self.samples)
        return predict(self.model_, inputs, samples, likelihood=self.likelihood_, seed=self.seed_, joint=True)


def merge_repeats(
    X: Array, y: Array, weights: Array, groups: Array | None = None
) -> tuple[Array, Array, Array, Array | None]:
    """The distinct examples of each group in an order of their own, with the sums of their weights.

    So that an example of weight k trains bit for bit as k copies do, and the order of the rows does not matter.

    Example:
        >>> X, y = np.array([[2.0], [1.0], [2.0]]), np.array([0.0, 1.0, 0.0])
        >>> [part.ravel().tolist() for part in merge_repeats(X, y, np.ones(3))[:3]]
        [[2.0, 1.0], [0.0, 1.0], [2.0, 1.0]]
    """
    # Adding zero turns -0.0, which has other bytes, into 0.0.
    columns = [X, y] if groups is None else [X, y, groups]
    rows = np.ascontiguousarray(np.column_stack(columns) + 0.0)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return X[first], y[first], np.bincount(inverse, weights), None if groups is None else groups[first]


def _plain(value: Any) -> Any:
    # Searches over arrays of settings pass numpy's numbers.
    return value.item() if isinstance(value, np.generic) else value


def _scaled(weight: float | Callable[[int], float], factor: float) -> float | Callable[[int], float]:
    return (lambda step: weight(step) * factor) if callable(weight) else float(weight) * factor
