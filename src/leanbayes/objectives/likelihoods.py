"""Likelihoods: what a network's outputs say about the targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._checks import check_count, check_positive, is_number
from leanbayes.objectives.noise import LEAST_VARIANCE, held_out_variance

# By how much the probabilities of all classes may exceed 1.
_SLACK = 1e-2


class Likelihood(nn.Module, ABC):
    """The distribution of targets given a network's outputs.

    Outputs come with the samples in front, ``[S, B, ...]``; targets are ``[B, ...]``.
    """

    @abstractmethod
    def elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Log-likelihood of every target element, ``[S, *targets.shape]``."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise where outputs and targets do not go together, or targets are out of range."""

    def training_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training maximises for every target element (with label smoothing, where there is any)."""
        return self.elementwise(outputs, targets)

    def lacks_outputs(self, outputs: Tensor) -> int | None:
        """Number of outputs ``[S, B, ...]`` that its parameters do not have yet, None where all is there."""
        return None

    def add_outputs_(self, count: int) -> None:
        """Give its parameters one entry for each of so many outputs; comes before the first optimiser step."""

    @property
    def fits_held_out(self) -> bool:
        """Whether `fit_held_out_` has something to fit."""
        return False

    def fit_held_out_(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Fit what is not trained, such as a noise, to predictions ``[S, N, ...]`` of rows that were not trained on."""

    def per_example(self, elements: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum over the target elements of each example: ``[S, B]``."""
        if mask is not None:
            if mask.shape != elements.shape[1:]:
                raise ValueError(
                    f"a mask of shape {tuple(mask.shape)} does not fit target elements of shape "
                    f"{tuple(elements.shape[1:])}; it needs one entry for each"
                )
            # What does not count may be infinite, and infinity times 0 is no number.
            elements = elements.masked_fill(mask == 0, 0.0) * mask.to(elements.dtype)
        return elements.flatten(2).sum(-1) if elements.dim() > 2 else elements

    def log_prob(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-likelihood of each example under each sample, ``[S, B]``."""
        return self.per_example(self.elementwise(outputs, targets), mask)


def _check_probabilities(likelihood: Likelihood, targets: Tensor) -> None:
    """Raises unless all targets are from 0 to 1; NaN is not."""
    if targets.dtype == torch.bool or not targets.numel():
        return
    low, high = float(targets.min()), float(targets.max())
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"{type(likelihood).__name__} targets must be from 0 to 1, but they reach from {low:g} to {high:g}"
        )


def _expands(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor of a shape can be expanded to another shape."""
    pairs = zip(reversed(shape), reversed(wanted))
    return len(shape) <= len(wanted) and all(own in (1, size) for own, size in pairs)


def _precise(outputs: Tensor) -> Tensor:
    """Outputs in float32 at least."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _tempered(scores: Tensor, temperature: float) -> Tensor:
    return scores if temperature == 1 else _precise(scores) / temperature


def check_labels(labels: Tensor, classes: int) -> None:
    """Raises unless labels count classes from 0."""
    low, high = (int(labels.min()), int(labels.max())) if labels.numel() else (0, 0)
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1} for {classes} outputs, but they reach from {low} to {high}; "
            "renumber them"
        )


class Categorical(Likelihood):
    """Classes, through a softmax over the outputs.

    Args:
        label_smoothing: Share of the target spread over all classes in training.
        ignore_index: Targets of this value do not count.
        class_dim: Axis of the classes in one sample's outputs ``[B, ...]``. None takes the axis that the labels do not
            have. Required if two axes fit, and for predictions or probability targets with more than two axes, unless
            training has found it.
        temperature: Divides the outputs before the softmax; above 1, it makes probabilities less confident, see
            `fit_temperature`.

    Attributes:
        trained_dim: The axis found in training, which predictions use.

    Example:
        >>> import torch
        >>> Categorical().log_prob(torch.zeros(1, 2, 4), torch.tensor([0, 3]))
        tensor([[-1.3863, -1.3863]])
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        class_dim: int | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(self, temperature=temperature)
        if not (is_number(label_smoothing) and 0 <= label_smoothing < 1):
            raise ValueError(
                f"Categorical(label_smoothing=...) takes a number from 0 to below 1, not {label_smoothing!r}"
            )
        if class_dim is not None and (isinstance(class_dim, bool) or not isinstance(class_dim, int) or class_dim == 0):
            raise ValueError(f"Categorical(class_dim=...) takes an axis of [B, ...] other than 0, not {class_dim!r}")
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
            raise ValueError(f"Categorical(ignore_index=...) takes a whole number, not {ignore_index!r}")
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.class_dim = class_dim
        self.temperature = temperature
        self.trained_dim: int | None = None

    def classes_last(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Scores ``[S, B, ..., C]`` with the classes on the last axis; their softmax gives the probabilities.

        Raises:
            ValueError: If the axis of the classes is ambiguous.
        """
        return _tempered(outputs.movedim(self._class_axis(outputs.shape, targets), -1), self.temperature)

    def _class_axis(self, shape: torch.Size, targets: Tensor | None) -> int:
        """Axis of the classes in outputs ``[S, B, ...]`` of a shape."""
        if self.class_dim is not None:
            axis = self.class_dim + 1 if self.class_dim > 0 else self.class_dim + len(shape)
            if not 2 <= axis < len(shape):
                raise ValueError(
                    f"class_dim={self.class_dim} is not an axis of outputs {tuple(shape[1:])} other than the batch"
                )
            return axis
        if len(shape) == 3:
            return 2
        fitting = range(2, len(shape)) if targets is None else self._fitting(shape, targets)
        known = None if self.trained_dim is None else self.trained_dim + 1
        if known is not None and known in fitting:
            return known
        if len(fitting) == 1:
            return fitting[0]
        of = "" if targets is None else f" for targets of shape {tuple(targets.shape)}"
        axes = ", ".join(str(axis - 1) for axis in (fitting or range(2, len(shape))))
        raise ValueError(
            f"outputs of shape {tuple(shape[1:])} may have their classes on any of the axes {axes}{of}; say which with "
            "likelihood=lb.Categorical(class_dim=...)"
        )

    def _fitting(self, shape: torch.Size, targets: Tensor) -> list[int]:
        """Axes of outputs ``[S, B, ...]`` without which their shape is that of the targets (all for probabilities)."""
        if self._soft(shape, targets):
            return list(range(2, len(shape)))
        rest = tuple(shape[1:])
        return [axis for axis in range(2, len(shape)) if rest[: axis - 1] + rest[axis:] == tuple(targets.shape)]

    def _soft(self, shape: torch.Size, targets: Tensor) -> bool:
        return targets.is_floating_point() and targets.shape == shape[1:]

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """See `Likelihood`."""
        shape = outputs.shape
        if self._soft(shape, targets):
            self._check_soft(targets.movedim(self._class_axis(shape, targets) - 1, -1))
            return
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise TypeError(
                f"class labels are whole numbers (or probabilities shaped as the outputs), not {targets.dtype}"
            )
        fits = self._fitting(shape, targets)
        if not fits or (self.class_dim is not None and self._class_axis(shape, targets) not in fits):
            raise ValueError(
                f"outputs of shape {tuple(shape[1:])} do not fit labels of shape {tuple(targets.shape)}; "
                "expected labels without the class axis"
            )
        classes = shape[self._class_axis(shape, targets)]
        labels = targets.long()  # in a byte, -100 and 156 are the same
        check_labels(labels[labels != self.ignore_index], classes)

    def _check_soft(self, targets: Tensor) -> None:
        """Raise unless targets ``[B, ..., C]`` are probabilities; padding may be zeros."""
        _check_probabilities(self, targets)
        # Half precision rounds each of them.
        most = float(targets.float().sum(-1).max()) if targets.numel() else 0.0
        if most > 1 + _SLACK:
            raise ValueError(
                f"Categorical targets shaped as the outputs are probabilities, which sum to 1, but these sum to up to "
                f"{most:g}; where several classes can be right at once, use lb.Bernoulli()"
            )

    def elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        return self._score(outputs, targets, 0.0)

    def training_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        if self.trained_dim is None and outputs.dim() > 3:
            self.trained_dim = self._class_axis(outputs.shape, targets) - 1
        return self._score(outputs, targets, self.label_smoothing)

    def _score(self, outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        axis = self._class_axis(outputs.shape, targets)
        last = outputs if axis == outputs.dim() - 1 else outputs.movedim(axis, -1)
        aligned = _tempered(last, self.temperature)
        if self._soft(outputs.shape, targets):
            log_probs = _precise(aligned).log_softmax(-1)
            wanted = targets.movedim(axis - 1, -1).to(log_probs.dtype)
            if smoothing:
                wanted = wanted * (1 - smoothing) + smoothing / wanted.shape[-1]
            return (wanted * log_probs).sum(-1)
        flat = _precise(aligned.reshape(-1, aligned.shape[-1]))
        labels = targets.long().expand(aligned.shape[:-1]).reshape(-1)
        loss = F.cross_entropy(
            flat, labels, ignore_index=self.ignore_index, reduction="none", label_smoothing=smoothing
        )
        return -loss.view(aligned.shape[:-1])


class Bernoulli(Likelihood):
    """A yes or no for every output, through a logistic function.

    Args:
        temperature: Divides the outputs before the logistic function; above 1, it makes probabilities less confident,
            see `fit_temperature`.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        check_positive(self, temperature=temperature)
        self.temperature = temperature

    def log_odds(self, outputs: Tensor) -> Tensor:
        """Those of every yes: their logistic function gives the probabilities."""
        return _tempered(outputs, self.temperature)

    def _aligned(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Networks with one output unit give [B, 1]; targets are usually [B].
        if outputs.shape[1:] == (*targets.shape, 1):
            return outputs.squeeze(-1)
        return outputs

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """See `Likelihood`."""
        if self._aligned(outputs, targets).shape[1:] != targets.shape:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape[1:])} do not fit targets of shape {tuple(targets.shape)}"
            )
        _check_probabilities(self, targets)

    def elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        aligned = _precise(self.log_odds(self._aligned(outputs, targets)))
        wanted = targets.to(aligned.dtype).expand(aligned.shape)
        return -F.binary_cross_entropy_with_logits(aligned, wanted, reduction="none")


class Gaussian(Likelihood):
    """Real targets around the outputs.

    Args:
        precision: 1 / noise variance, a number or one per output; ``"learned"`` for a trained one per output;
            None for heteroscedastic noise: the last axis of the outputs then holds D means and D log variances.
        init_precision: Where a learned precision starts.
        outputs: Number of outputs, the size of the last axis of ``[B, D]`` and ``[B, T, D]``, for a learned precision.
            None reads it off the first batch, which needs one process and uncompiled code. Maps of pixels have one
            precision.
        held_out: Fits a factor of the noise variance to rows that were not trained on, at each evaluation of
            `leanbayes.training.fit`: one for each of `outputs`, or else one for all. Predictions use it, training does
            not. Residuals of training rows are too small, so noise estimated from them alone is overconfident. A
            variance that the network predicts is first capped at the largest squared residual of those rows: a normal
            density falls as its variance grows beyond the squared residual, so the cap makes none of them less likely.
            Without it, rows far from all others would get unbounded noise, because log variances continue in straight
            lines there.

    Example:
        >>> import torch
        >>> Gaussian(1.0).log_prob(torch.zeros(1, 2, 1), torch.tensor([0.0, 1.0]))
        tensor([[-0.9189, -1.4189]])
    """

    # Keeps exp() of a log variance finite in float32.
    _LOG_VAR_LIMIT = 20.0
    log_factor: Tensor
    log_most: Tensor

    def __init__(
        self,
        precision: float | Sequence[float] | Tensor | str | None = None,
        init_precision: float = 1.0,
        outputs: int | None = None,
        held_out: bool = False,
    ) -> None:
        super().__init__()
        self.heteroscedastic = precision is None
        self.held_out = held_out
        self.log_precision: Tensor | None = None
        self.outputs = outputs
        if outputs is not None:
            check_count(self, outputs=outputs)
            if precision != "learned" and not held_out:
                raise ValueError(
                    "Gaussian(outputs=...) goes with a learned precision, Gaussian('learned', outputs=2), or with "
                    "held_out=True"
                )
        if held_out not in (False, True):
            raise ValueError(f"Gaussian(held_out=...) takes True or False, not {held_out!r}")
        if held_out:
            self.register_buffer("log_factor", torch.zeros(() if outputs in (None, 1) else (outputs,)))
            if self.heteroscedastic:
                self.register_buffer("log_most", torch.full_like(self.log_factor, self._LOG_VAR_LIMIT))
        if isinstance(precision, str):
            if precision != "learned":
                raise ValueError(f"Gaussian(precision) takes a number, 'learned' or None, not {precision!r}")
            check_positive(self, init_precision=init_precision)
            shape = () if outputs in (None, 1) else (outputs,)
            self.log_precision = nn.Parameter(torch.full(shape, math.log(init_precision)))
        elif precision is not None:
            value = torch.as_tensor(precision, dtype=torch.get_default_dtype())
            if isinstance(precision, bool) or not value.numel() or not bool(((value > 0) & value.isfinite()).all()):
                raise ValueError(f"Gaussian(precision) takes positive numbers, not {precision!r}")
            self.register_buffer("fixed_log_precision", value.log())

    def parameter_kinds(self) -> dict[str, str]:
        """What `param_groups` takes the parameters for: noise, which no weight decay acts on."""
        return {name: "noise" for name, _ in self.named_parameters()}

    def lacks_outputs(self, outputs: Tensor) -> int | None:
        """See `Likelihood`."""
        unknown = self.log_precision is not None and self.outputs is None and self.log_precision.dim() == 0
        several = 3 <= outputs.dim() <= 4 and outputs.shape[-1] > 1
        return outputs.shape[-1] if unknown and several else None

    @torch.no_grad()
    def add_outputs_(self, count: int) -> None:
        """See `Likelihood`; the parameter stays the same object, which optimisers hold."""
        assert self.log_precision is not None
        self.log_precision.data = self.log_precision.data.expand(count).clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        key = f"{prefix}log_precision"
        value = state_dict.get(key)
        if isinstance(value, Tensor) and self.log_precision is not None and self.outputs is None:
            if value.dim() == 1 and self.log_precision.dim() == 0:
                self.add_outputs_(len(value))
            elif value.dim() == 0:  # from before the first batch, when all outputs have the same
                state_dict[key] = value.expand(self.log_precision.shape).clone()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def split(self, outputs: Tensor, *, fitted: bool = True) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the targets, in float32 at least; `fitted` includes the fit to held-out rows."""
        outputs = _precise(outputs)
        if self.heteroscedastic:
            self._means_shape(outputs)
            mean, log_var = outputs.chunk(2, -1)
            log_var = log_var.clamp(-self._LOG_VAR_LIMIT, self._LOG_VAR_LIMIT)
            if self.held_out and fitted:
                log_var = torch.minimum(log_var, self.log_most.to(log_var.dtype))
        else:
            log_precision = self.log_precision if self.log_precision is not None else self.fixed_log_precision
            assert isinstance(log_precision, Tensor)
            mean, log_var = outputs, (-log_precision).to(outputs.dtype).expand(outputs.shape)
        if self.held_out and fitted:
            log_var = log_var + self.log_factor.to(log_var.dtype)
        return mean, log_var

    def _means_shape(self, outputs: Tensor) -> tuple[int, ...]:
        """Shape of the means in outputs ``[S, B, ...]``."""
        if not self.heteroscedastic:
            return tuple(outputs.shape)
        if outputs.shape[-1] % 2:
            raise ValueError(
                f"Gaussian() needs D means and D log variances on the last axis, not {outputs.shape[-1]} outputs; "
                "pass a precision for outputs that are means alone"
            )
        return (*outputs.shape[:-1], outputs.shape[-1] // 2)

    @property
    def fits_held_out(self) -> bool:
        """See `Likelihood`."""
        return self.held_out

    @torch.no_grad()
    def fit_held_out_(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """See `Likelihood`; the tensor stays the same object, which recorded steps read."""
        mean, log_var = self._aligned(outputs, targets, fitted=False)
        squares = (targets.to(mean.dtype) - mean).square()  # [S, N, ...]
        if squares.dim() == 2:
            squares, log_var = squares.unsqueeze(-1), log_var.unsqueeze(-1)
        shared = self.log_factor.dim() == 0
        if self.heteroscedastic:
            largest = squares.amax() if shared else squares.flatten(0, -2).amax(0)
            self.log_most.copy_(largest.clamp_min(LEAST_VARIANCE).log().clamp_max(self._LOG_VAR_LIMIT))
            log_var = torch.minimum(log_var, self.log_most.to(log_var.dtype))
        squares = squares * (-log_var).exp()
        self.log_factor.copy_(held_out_variance(squares, weights, shared=shared, log_scale=log_var).log())

    def _aligned(self, outputs: Tensor, targets: Tensor, *, fitted: bool = True) -> tuple[Tensor, Tensor]:
        mean, log_var = self.split(outputs, fitted=fitted)
        if mean.shape[1:] == (*targets.shape, 1):
            return mean.squeeze(-1), log_var.squeeze(-1)
        return mean, log_var

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """See `Likelihood`."""
        # Shapes alone: training asks before every step, with outputs that have no values.
        *shape, last = self._means_shape(outputs)[1:]
        if tuple(targets.shape) not in ((*shape, last), tuple(shape) if last == 1 else None):
            raise ValueError(
                f"predicted means of shape {(*shape, last)} do not fit targets of shape {tuple(targets.shape)}"
            )
        for noise in (*self.parameters(), *self.buffers()):
            if not _expands(noise.shape, (*shape, last)):
                raise ValueError(
                    f"a noise of shape {tuple(noise.shape)} does not fit predicted means of shape {(*shape, last)}; "
                    "give Gaussian one number for each output, or one for all"
                )
        if not bool(torch.isfinite(targets).all()):
            raise ValueError(
                "the targets contain NaN or infinite values; remove those examples, or put numbers in their place and "
                "leave them out by a mask"
            )

    def elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        return self._score(outputs, targets, fitted=True)

    def training_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        return self._score(outputs, targets, fitted=False)

    def _score(self, outputs: Tensor, targets: Tensor, *, fitted: bool) -> Tensor:
        mean, log_var = self._aligned(outputs, targets, fitted=fitted)
        squares = (targets.to(mean.dtype) - mean).square() * (-log_var).exp()
        return -0.5 * (squares + log_var + math.log(2 * math.pi))
