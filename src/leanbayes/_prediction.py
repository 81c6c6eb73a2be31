"""What a prediction knows: probabilities, moments, and where the uncertainty comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

# Elements of outputs that are summed at once.
_ELEMENTS = 1 << 22
# Steps to a quantile of a mixture at most; the last one's length, in standard deviations, and the rounding of values.
_STEPS, _ACCURACY, _ROUNDING = 100, 1e-12, 1e-15


class Statistics:
    """Sums over samples that all summaries follow from, so that samples can be streamed.

    Args:
        likelihood: How outputs are read; None reads raw outputs as values, and as class scores where classes are
            asked for.
    """

    def __init__(self, likelihood: Likelihood | None) -> None:
        self.likelihood = likelihood
        self.count = 0
        self.sums: dict[str, Tensor] = {}
        self.dtype = torch.float32

    def add(self, outputs: Tensor) -> None:
        """Take in outputs ``[n, B, ...]``."""
        self.dtype = _result_type(outputs)
        self.count += outputs.shape[0]
        # Some samples after the others: in double precision all of them would take several times their memory.
        for some in outputs.split(max(1, _ELEMENTS // max(1, outputs[0].numel()))):
            for name, values in self._values(some).items():
                total = values.sum(0)
                self.sums[name] = self.sums[name] + total if name in self.sums else total

    def _values(self, outputs: Tensor) -> dict[str, Tensor]:
        """Per-sample quantities whose mean over samples is kept."""
        likelihood = self.likelihood
        if isinstance(likelihood, Gaussian):
            mean, log_var = likelihood.split(outputs)
            mean = mean.double()
            return {
                "first": mean,
                "second": mean.square(),
                "noise": log_var.double().exp(),
                "aleatoric": 0.5 * (log_var.double() + math.log(2 * math.pi * math.e)),
            }
        if isinstance(likelihood, Bernoulli):
            probs = likelihood.log_odds(outputs.double()).sigmoid()
            return {"first": probs, "second": probs.square(), "aleatoric": _binary_entropy(probs)}
        # Without a likelihood, [S, B, C] may be scores; which of more axes are classes would be a guess.
        if outputs.dim() < 3 or (likelihood is None and outputs.dim() > 3):
            return {"first": outputs.double(), "second": outputs.double().square()}
        scores = likelihood.classes_last(outputs) if isinstance(likelihood, Categorical) else outputs
        probs = scores.double().softmax(-1)
        found = {"probs": probs, "aleatoric": _entropy(probs)}
        values = outputs.double() if likelihood is None else probs
        return found | {"first": values, "second": values.square()}

    def mean(self, name: str) -> Tensor:
        """Mean over samples of one quantity."""
        if name not in self.sums:
            axes = self.sums["first"].dim()
            if axes > 2:
                raise ValueError(
                    f"outputs of {axes} axes may have their classes on any but the first; pass "
                    "likelihood=lb.Categorical(class_dim=...), or that of the training, to lb.predict"
                )
            raise ValueError("these outputs have no class axis; pass the likelihood that reads them to lb.predict")
        return self.sums[name] / self.count


class Prediction:
    """Predictions with their uncertainty; probabilities are averaged over samples, never logits.

    Entropies are in nats, and ``entropy = aleatoric + mutual_information``.

    Args:
        outputs: Raw outputs ``[S, B, ...]``, None where only the summary is kept.
        likelihood: How outputs are read.
        statistics: Sums over samples, computed from the outputs if not given.
    """

    def __init__(
        self, outputs: Tensor | None, likelihood: Likelihood | None = None, statistics: Statistics | None = None
    ) -> None:
        self._outputs = outputs
        self._summed = statistics
        self.likelihood = likelihood
        if outputs is not None:
            self.dtype = _result_type(outputs)
        else:
            self.dtype = torch.float32 if statistics is None else statistics.dtype

    @property
    def outputs(self) -> Tensor:
        """Raw outputs of every sample, ``[S, B, ...]``."""
        if self._outputs is None:
            raise ValueError("keep='summary' holds no single samples; predict with keep='outputs' for them")
        return self._outputs

    @property
    def _statistics(self) -> Statistics:
        # Summed when first asked for: who wants raw outputs alone does not pay for it.
        if self._summed is None:
            self._summed = Statistics(self.likelihood)
            self._summed.add(self.outputs)
        return self._summed

    @property
    def samples(self) -> int:
        """Number of samples S."""
        return self._statistics.count if self._outputs is None else self._outputs.shape[0]

    def _binary(self) -> bool:
        return isinstance(self.likelihood, Bernoulli)

    def _gaussian(self) -> bool:
        return isinstance(self.likelihood, Gaussian)

    def _mean(self, name: str) -> Tensor:
        return self._statistics.mean(name)

    @property
    def probs(self) -> Tensor:
        """Predictive probabilities, classes on the last axis: ``[B, C]`` (of the event for Bernoulli)."""
        if self._gaussian():
            raise ValueError("a Gaussian likelihood predicts values, not probabilities; use .mean and .std")
        return self._mean("first" if self._binary() else "probs").to(self.dtype)

    @property
    def mean(self) -> Tensor:
        """Predictive mean of the target, of class probabilities, or of raw outputs where no likelihood is given."""
        return self._mean("first").to(self.dtype)

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation: noise and model together for Gaussian targets, else the spread of samples."""
        return self._variance().sqrt().to(self.dtype)

    def _variance(self) -> Tensor:
        # Noise apart: beside the square of a large mean, rounding would swallow it.
        spread = (self._mean("second") - self._mean("first").square()).clamp_min(0)
        return spread + self._mean("noise") if self._gaussian() else spread

    @property
    def entropy(self) -> Tensor:
        """Entropy of the predictive distribution (of the moment-matched normal for Gaussian targets)."""
        return self._entropy().to(self.dtype)

    def _entropy(self) -> Tensor:
        if self._gaussian():
            return 0.5 * (self._variance().clamp_min(1e-300).log() + math.log(2 * math.pi * math.e))
        return _binary_entropy(self._mean("first")) if self._binary() else _entropy(self._mean("probs"))

    @property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the samples' own predictions: the uncertainty that more data would not remove."""
        return self._mean("aleatoric").to(self.dtype)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy minus `aleatoric`: how much the samples disagree (epistemic uncertainty)."""
        return (self._entropy() - self._mean("aleatoric")).clamp_min(0).to(self.dtype)

    @property
    def label(self) -> Tensor:
        """Most probable class."""
        return (self.probs > 0.5).long() if self._binary() else self.probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class."""
        return torch.maximum(self.probs, 1 - self.probs) if self._binary() else self.probs.amax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log predictive density of each example ``[B]``: log-mean-exp over samples of the targets' log-likelihood."""
        likelihood = Categorical() if self.likelihood is None else self.likelihood
        if self._outputs is None:
            if not isinstance(likelihood, Categorical) or y.dim() != 1:
                raise ValueError(
                    "keep='summary' gives log_prob for class labels [B] alone; predict with keep='outputs'"
                )
            return self._log_prob_of_labels(y, likelihood)
        likelihood.check(self._outputs, y)
        with torch.set_grad_enabled(self._outputs.requires_grad):
            scores = likelihood.log_prob(self._outputs, y)
        return torch.logsumexp(scores, 0) - math.log(scores.shape[0])

    def _log_prob_of_labels(self, y: Tensor, likelihood: Categorical) -> Tensor:
        # In double precision, in which they reach as far down as any that training meets.
        probs = self._mean("probs")
        likelihood.check(probs.unsqueeze(0), y)
        labels = y.long()
        ignored = labels == likelihood.ignore_index
        found = probs.gather(-1, labels.masked_fill(ignored, 0).unsqueeze(-1)).squeeze(-1)
        return found.clamp_min(torch.finfo(found.dtype).tiny).log().masked_fill(ignored, 0.0).to(self.dtype)

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the predictive distribution: ``[*q.shape, B, ...]``.

        Of the mixture of normals for Gaussian targets; else of the samples' probabilities or raw outputs.
        """
        outputs = self.outputs
        # Not in the dtype of the outputs: in bfloat16, 0.999 is 1.
        levels = torch.as_tensor(q, dtype=torch.float64, device=outputs.device)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(f"quantile levels are from 0 to 1, not {q!r}")
        if isinstance(self.likelihood, Gaussian):
            mean, log_var = self.likelihood.split(outputs)
            return _mixture_quantile(mean.detach().double(), (0.5 * log_var.detach().double()).exp(), levels).to(
                self.dtype
            )
        values = Statistics(self.likelihood)._values(outputs)["first"]
        flat = torch.quantile(values, levels.flatten(), dim=0)
        return flat.reshape(*levels.shape, *values.shape[1:]).to(self.dtype)

    def __repr__(self) -> str:
        shape = tuple(self._statistics.sums["first"].shape)
        return f"Prediction(samples={self.samples}, shape={shape}, likelihood={self.likelihood})"


def _result_type(outputs: Tensor) -> torch.dtype:
    return torch.float64 if outputs.dtype == torch.float64 else torch.float32


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def _binary_entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs) - torch.xlogy(1 - probs, 1 - probs)


def _mixture_quantile(mean: Tensor, std: Tensor, levels: Tensor) -> Tensor:
    """Quantiles of an equal mixture of normals ``[S, ...]``."""
    results = []
    for level in levels.flatten().tolist():
        if level in (0.0, 1.0):
            results.append(torch.full_like(mean[0], -math.inf if level == 0 else math.inf))
        else:
            results.append(_one_quantile(mean, std, level))
    return torch.stack(results).reshape(*levels.shape, *mean.shape[1:])


def _one_quantile(mean: Tensor, std: Tensor, level: float) -> Tensor:
    """The quantile ``[...]`` at a level between 0 and 1, by Newton's method.

    It lies between those of the single normals. A step that leaves what is known to hold it, or that is not half as
    long as the one before, gives way to halving that interval.
    """
    each = mean + std * torch.special.ndtri(torch.tensor(level, dtype=mean.dtype))
    low, high = each.amin(0), each.amax(0)
    narrowest, last = std.amin(0), high - low
    x = 0.5 * (low + high)
    for _ in range(_STEPS):
        z = (x - mean) / std
        excess = torch.special.ndtr(z).mean(0) - level
        step = excess / ((-0.5 * z.square()).exp() / std).mean(0) * math.sqrt(2 * math.pi)
        # Not where the density is 0, between normals far from each other.
        settled = step.abs() <= _ACCURACY * narrowest + _ROUNDING * x.abs()
        if bool(settled.all()):
            break
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        newton, middle = x - step, 0.5 * (low + high)
        good = (newton > low) & (newton < high) & (step.abs() <= 0.5 * last)
        moved = torch.where(good, newton, middle)
        last, x = (moved - x).abs(), torch.where(settled, x, moved)
    return x


def join_statistics(parts: list[Statistics]) -> Statistics:
    """The statistics of several batches, one after the other."""
    joined = Statistics(parts[0].likelihood)
    joined.count = parts[0].count
    joined.dtype = parts[0].dtype
    joined.sums = {name: torch.cat([part.sums[name] for part in parts]) for name in parts[0].sums}
    return joined
