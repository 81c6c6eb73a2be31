"""Evaluation of the validation data during training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from leanbayes._components import draws_noise
from leanbayes._prediction import Prediction
from leanbayes._sampling import sampling
from leanbayes.objectives.elbo import ELBO
from leanbayes.objectives.likelihoods import Categorical, Likelihood
from leanbayes.training.data import Source
from leanbayes.training.runtime import Runtime


def evaluate(runtime: Runtime, source: Source, samples: int, seed: int) -> dict[str, float]:
    """Means over the validation data: the predictive NLL and, for class labels, the accuracy.

    The NLL is that of the mixture over samples and components. The draws are those of the seed, and training goes on
    as if nothing had been drawn. A noise that is fitted to held-out rows is fitted to these before they are scored.
    """
    likelihood = runtime.elbo.likelihood
    found: list[Tensor] = []
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.no_grad(), evaluating(runtime.elbo, samples), sampling(seed=seed):
        for batch in source.begin(0):
            outputs = runtime.evaluate(batch).outputs
            if likelihood.fits_held_out:
                weights = torch.ones(batch.rows, device=batch.y.device) if batch.weights is None else batch.weights
                seen.append((outputs, batch.y, weights))
            else:
                found.append(score(likelihood, outputs, batch.y, batch.weights))
        if seen:
            found = [_fit_and_score(runtime, likelihood, seen)]
    if not found:
        raise ValueError(
            "the validation data has no examples, or none left; pass something that can be iterated again, such as a "
            "DataLoader"
        )
    total, count, *right = runtime.total(torch.stack(found).sum(0).tolist())
    if not count:
        raise ValueError("all examples of the validation data have weight 0; give some of them a weight")
    return {"valid_nll": total / count} | ({"valid_accuracy": right[0] / count} if right else {})


def _fit_and_score(runtime: Runtime, likelihood: Likelihood, seen: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Fit what the likelihood fits to all rows of all processes; the scores of this process's rows."""
    own = [torch.cat(parts, dim) for parts, dim in zip(zip(*seen), (1, 0, 0))]
    everyone = runtime.gather([part.cpu() for part in own]) if runtime.world > 1 else [own]
    whole = [torch.cat(parts, dim) for parts, dim in zip(zip(*everyone), (1, 0, 0))]
    likelihood.fit_held_out_(*(part.to(own[0].device) for part in whole))
    return score(likelihood, *own)


def score(likelihood: Likelihood, outputs: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    """Sums over a batch's examples: NLL, weights and, for class labels, rightly classified; ``[2]`` or ``[3]``."""
    scores = likelihood.log_prob(outputs, y)  # [S, B]
    nll = math.log(scores.shape[0]) - torch.logsumexp(scores, 0)
    weights = torch.ones_like(nll) if weights is None else weights.to(nll.dtype)
    parts = [(nll * weights).sum(), weights.sum()]
    if isinstance(likelihood, Categorical) and y.dim() == 1 and not y.is_floating_point():
        parts.append(((Prediction(outputs, likelihood).label == y) * weights).sum())
    return torch.stack(parts).double()


@contextmanager
def evaluating(elbo: ELBO, samples: int) -> Iterator[None]:
    """The objective in eval mode, every component on every example; all as it was afterwards."""
    training = [module for module in elbo.modules() if module.training]
    before = elbo.samples, elbo.tile
    elbo.eval()
    elbo.samples, elbo.tile = samples if draws_noise(elbo.model) else 1, True
    try:
        yield
    finally:
        elbo.samples, elbo.tile = before
        for module in training:
            module.training = True
