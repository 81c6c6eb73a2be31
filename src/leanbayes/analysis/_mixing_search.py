"""The search for mixing probabilities of patched layers, one layer after the other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._components import mixture_parts
from leanbayes._owners import owners
from leanbayes._predict import predict
from leanbayes._prefix import look_at
from leanbayes._rows import map_rows
from leanbayes.analysis._layers import uncompiled
from leanbayes.analysis._weights import at_least, best_weights
from leanbayes.nn._replica import replica
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.posteriors.patch import FoundProbs
from leanbayes.training.seeds import derive

# Where elements choose for themselves, how far probabilities lean towards one copy to see what it is worth: first, and
# at least.
_LEAN, _SHORTEST = 0.5, 0.05
# A round that gains less, in nats per example, is the last; one that costs no pass through the model may gain less.
_TOLERANCE, _TOLERANCE_OF_TABLE = 1e-4, 1e-10
_ROUNDS_OF_TABLE = 1000
# So many times as many samples decide in the end whether the new probabilities are better than the old ones.
_CHECKED = 4


def search(trial: Trial, samples: int, rounds: int, seed: int) -> tuple[list[Tensor] | None, float, float, bool]:
    """Look for better mixing probabilities.

    Args:
        trial: Runs the model.
        samples: Draws of an expectation; combinations of copies that are no more than that are all gone through.
        rounds: Rounds over all layers, at most.
        seed: Of the draws.

    Returns:
        The probabilities of each layer, None where none are better; the mean log density before and after; and whether
        it is exact.
    """
    start = trial.start
    exact = math.prod(map(len, start)) <= samples and not trial.has_other_noise()
    if exact:
        judge = _Table(trial)
        found = _ascend(judge, start, [1.0] * len(start), _ROUNDS_OF_TABLE, _TOLERANCE_OF_TABLE)
    else:
        lean = [_LEAN if group.per_element else 1.0 for group in trial.groups]
        found = _ascend(_Draws(trial, samples, derive(seed, "search")), start, lean, rounds, _TOLERANCE)
        # Draws that the search has not seen.
        judge = _Draws(trial, _CHECKED * samples, derive(seed, "check"))
    before, after = (float(judge.log_density(probs).mean()) for probs in (start, found))
    return (found, before, after, exact) if after > before else (None, before, before, exact)


class Trial:
    """Runs a model by mixing probabilities that are tried: a replica of it, so that nothing shows.

    Args:
        model: The model.
        names: Its patched layers.
        pairs: Inputs and targets, some rows after the others.
        likelihood: How outputs explain targets.
    """

    def __init__(
        self, model: nn.Module, names: list[str], pairs: list[tuple[Any, Tensor]], likelihood: Likelihood
    ) -> None:
        self.model = replica(uncompiled(model))
        self.pairs = pairs
        self.likelihood = likelihood
        self.device = next(model.parameters()).device
        self.groups: list[Any] = [self.model.get_submodule(name).mixing for name in names]
        self.start = [group.probs(torch.empty(0, dtype=torch.float64)).cpu() for group in self.groups]
        for group in self.groups:
            group.logits = None
            group.found = FoundProbs(torch.zeros(group.components, dtype=torch.float64, device=self.device))

    def has_other_noise(self) -> bool:
        """Whether predictions differ for another reason than the copies that whole layers choose."""
        sources = owners(self.model, "draws_noise")
        if any(owner.draws_noise() and not getattr(owner, "draws_copies", False) for owner in sources):
            return True
        x = map_rows(self.pairs[0][0], lambda t: t.to(self.device))
        return bool(mixture_parts(self.model)) or look_at(self.model, x).own_noise

    def log_density(self, probs: list[Tensor], samples: int, seed: int) -> Tensor:
        """Log predictive density of each example ``[N]``; the seed decides on all draws, whatever the probabilities."""
        for group, values in zip(self.groups, probs):
            group.found.log_probs.copy_(values.log())
        found = []
        for x, y in self.pairs:
            x, y = map_rows(x, lambda t: t.to(self.device)), y.to(self.device)
            prediction = predict(self.model, x, samples, likelihood=self.likelihood, seed=seed, joint=True)
            found.append(prediction.log_prob(y).double().cpu())
        return torch.cat(found)


class _Table:
    """The densities of all combinations of copies, of which every expectation follows."""

    def __init__(self, trial: Trial) -> None:
        sizes = [group.components for group in trial.groups]
        rows = []
        for choice in itertools.product(*map(range, sizes)):
            only = [_one_hot(k, size) for k, size in zip(choice, sizes)]
            rows.append(trial.log_density(only, 1, 0))
        table = torch.stack(rows).unflatten(0, sizes)  # [K_1, ..., K_L, N]
        self.largest = table.flatten(0, -2).amax(0)
        self.densities = (table - self.largest).exp()

    def log_density(self, probs: list[Tensor]) -> Tensor:
        """Log predictive density of each example ``[N]``."""
        return (probs[0] @ self._given(0, probs)).log() + self.largest

    def leaning(self, layer: int, probs: list[Tensor], lean: float) -> Tensor:
        """The same if one layer leans towards a copy, for each of its copies ``[K, N]``."""
        assert lean == 1
        return self._given(layer, probs).log() + self.largest

    def _given(self, layer: int, probs: list[Tensor]) -> Tensor:
        """Relative densities given the copy of one layer ``[K, N]``, averaged over those of the others."""
        found = self.densities
        for other in reversed(range(len(probs))):
            if other != layer:
                found = found.movedim(other, -1) @ probs[other]
        return found


class _Draws:
    """The same by draws of the whole model, those of one seed."""

    def __init__(self, trial: Trial, samples: int, seed: int) -> None:
        self.trial, self.samples, self.seed = trial, samples, seed

    def log_density(self, probs: list[Tensor]) -> Tensor:
        """See `_Table`."""
        return self.trial.log_density(probs, self.samples, self.seed)

    def leaning(self, layer: int, probs: list[Tensor], lean: float) -> Tensor:
        """See `_Table`."""
        size = len(probs[layer])
        towards = [torch.lerp(probs[layer], _one_hot(k, size), lean) for k in range(size)]
        return torch.stack([self.log_density(_replaced(probs, layer, each)) for each in towards])


def _ascend(
    search: _Table | _Draws, start: list[Tensor], lean: list[float], rounds: int, tolerance: float
) -> list[Tensor]:
    """Better and better probabilities, one layer after the other.

    Args:
        search: Gives the densities.
        start: Where to begin.
        lean: By layer, how far to lean towards a copy; 1 where all of the layer is that copy.
        rounds: Rounds over all layers, at most.
        tolerance: Gain of a round, in nats per example, from which on another one follows.
    """
    probs, lean = list(start), list(lean)
    for _ in range(rounds):
        gain, shortened = 0.0, False
        for layer, step in enumerate(lean):
            if step < _SHORTEST:
                continue
            old = probs[layer]
            towards = search.leaning(layer, probs, step)
            new = at_least(torch.lerp(old, best_weights(towards, old), step))
            trial = _replaced(probs, layer, new)
            if step == 1:
                more = _mixed(towards, new) - _mixed(towards, old)
            else:
                more = float((search.log_density(trial) - search.log_density(probs)).mean())
            if more > 0:
                probs, gain = trial, gain + more
            elif step < 1:
                lean[layer], shortened = step / 2, True
        if gain < tolerance and not shortened:
            break
    return probs


def _mixed(log_density: Tensor, probs: Tensor) -> float:
    """Mean log density of a mixture of ``[K, N]``."""
    return float((log_density + probs.log().unsqueeze(1)).logsumexp(0).mean())


def _replaced(probs: list[Tensor], layer: int, values: Tensor) -> list[Tensor]:
    return [*probs[:layer], values, *probs[layer + 1 :]]


def _one_hot(copy: int, size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)[copy]
