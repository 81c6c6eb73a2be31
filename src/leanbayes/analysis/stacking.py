"""Stacking: mixing probabilities that predict held-out data best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._prediction import Prediction
from leanbayes._sampling import Sampling, current_sampling, using
from leanbayes._summary import _table
from leanbayes.analysis._data import check_count, pairs
from leanbayes.analysis._layers import shown, uncompiled
from leanbayes.analysis._mixing_search import Trial, search
from leanbayes.analysis._weights import best_weights
from leanbayes.nn._base import Converted, ConvertedLayer
from leanbayes.objectives.likelihoods import Categorical, Likelihood
from leanbayes.posteriors.patch import PatchGroup

# Rows whose samples are held at once.
_ROWS = 1024


@dataclass(frozen=True)
class Stacking:
    """What `stack_mixing` found; `print` shows it as a table.

    Attributes:
        probs: Mixing probabilities ``[K]`` of each patched layer, by its name.
        before: Log predictive density of the held-out data before, in nats per example.
        after: The same with these probabilities, on the same draws; never less.
        exact: Whether all combinations of copies were evaluated, so that nothing was drawn.
    """

    probs: dict[str, Tensor]
    before: float
    after: float
    exact: bool

    def __str__(self) -> str:
        cells = [["layer", "probabilities"]]
        cells += [[shown(name), " ".join(f"{p:.3f}" for p in probs.tolist())] for name, probs in self.probs.items()]
        how = "exact" if self.exact else "by draws"
        density = f"log density per held-out example, {how}: {self.before:.4f} before, {self.after:.4f} after"
        return f"{_table(cells, '<<')}\n{density}"


@torch.no_grad()
def stack_mixing(
    model: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 32,
    rounds: int = 5,
    batch_size: int | None = None,
    seed: int = 0,
) -> Stacking:
    r"""Choose the mixing probabilities of patched layers by stacking predictions (Yao et al. 2018).

    Training gives every copy a say, even one that turned out badly. With all other parameters fixed, this finds the
    probabilities under which the model, averaged over its draws, predicts held-out data best:

    .. math:: \max_p \frac{1}{N} \sum_n \log E_{w \sim q_p} \, p(y_n \mid x_n, w)

    The model keeps them: draws, `lb.kl`, `lb.predict`, `lb.save` and `lb.point_estimate` use them from then on. Learned
    probabilities (`learn_mixing`) can be trained further from there. Nothing else in the model changes, and nothing at
    all if no better probabilities are found.

    Layers take turns. With the probabilities of the other layers fixed, those of an `EMP` layer solve a convex problem
    by EM: the weights of K predictive distributions, one for each copy. An `ECMP` layer, whose elements choose
    individually, moves towards the best mixture of K distributions that each lean towards one copy, for as long as that
    helps. If there are no more combinations of copies than `samples`, and nothing else is random, each is evaluated
    once and the expectation is exact. Otherwise it is taken over `samples` draws, the same for all copies.

    Args:
        model: A model with layers that `EMP`, `ECMP` or `Patch` converted.
        x: Inputs that the model was not trained on: a tensor ``[N, ...]``, a mapping or tuple of tensors; or a loader
            of ``(inputs, targets)``, which is read once and held in memory.
        y: Targets ``[N, ...]``; None for a loader.
        likelihood: How outputs explain targets; None means `Categorical()`.
        samples: Draws for an expectation. A round over L layers of K copies takes L K times as many passes.
        rounds: Maximum number of rounds over all layers; it ends earlier when a round gains less than 1e-4 nats per
            example.
        batch_size: Rows at once; None means 1024.
        seed: Makes the draws repeatable.

    Returns:
        The probabilities, and the log predictive density before and after.

    Example:
        >>> import torch, leanbayes as lb
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> model = lb.bayesianize(torch.nn.Sequential(torch.nn.Linear(4, 3)), lb.EMP(components=2, init_std=2.0))
        >>> found = lb.analysis.stack_mixing(model, torch.randn(200, 4), torch.randint(3, (200,)))
        >>> found.after >= found.before, found.probs["0"].shape
        (True, torch.Size([2]))
    """
    groups = _patched(model)
    check_count("samples", samples, optional=False)
    check_count("rounds", rounds, optional=False)
    check_count("batch_size", batch_size)
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood takes one such as lb.Categorical(), not {likelihood!r}")
    with using(Sampling(batch_dim=current_sampling().batch_dim)):
        data = list(pairs(x, y, batch_size or _ROWS))
        trial = Trial(model, list(groups), data, Categorical() if likelihood is None else likelihood)
        found, before, after, exact = search(trial, samples, rounds, seed)
    if found is None:
        return Stacking(dict(zip(groups, trial.start)), before, after, exact)
    device = next(model.parameters()).device
    for group, probs in zip(groups.values(), found):
        group.set_probs_(probs.float().to(device))
    return Stacking(dict(zip(groups, found)), before, after, exact)


@torch.no_grad()
def stacking_weights(outputs: Tensor | Prediction, y: Tensor, *, likelihood: Likelihood | None = None) -> Tensor:
    r"""The weights of given networks whose weighted average predicts held-out data best (Yao et al. 2018).

    For networks without mixing probabilities in their model, such as the members of a deep ensemble:
    the maximum of :math:`\sum_n \log \sum_k w_k \, p(y_n \mid x_n, k)` over weights with a sum of 1, a convex problem.
    Average the probabilities of new predictions with them.

    Args:
        outputs: Outputs ``[K, N, ...]`` of K networks, or a `Prediction` that has kept its outputs.
        y: Targets ``[N, ...]``, which no network was trained on.
        likelihood: How outputs explain targets; None takes that of the prediction, or `Categorical()`.

    Returns:
        Weights ``[K]`` in float64.

    Example:
        >>> import torch, leanbayes as lb
        >>> right, wrong = torch.tensor([[3.0, 0.0]]).expand(6, 2), torch.tensor([[0.0, 3.0]]).expand(6, 2)
        >>> weights = lb.analysis.stacking_weights(torch.stack([right, wrong]), torch.zeros(6, dtype=torch.long))
        >>> [round(w, 3) for w in weights.tolist()]
        [1.0, 0.0]
    """
    if isinstance(outputs, Prediction):
        likelihood = likelihood or outputs.likelihood
        outputs = outputs.outputs
    if not isinstance(outputs, Tensor) or not isinstance(y, Tensor):
        raise TypeError(f"expected tensors or a Prediction, got {type(outputs).__name__} and {type(y).__name__}")
    if outputs.dim() < 2 or not len(outputs) or not len(y) or outputs.shape[1] != len(y):
        raise ValueError(
            f"stacking_weights takes outputs [K, N, ...] and N targets, not {tuple(outputs.shape)} and {tuple(y.shape)}"
        )
    likelihood, y = likelihood or Categorical(), y.to(outputs.device)
    likelihood.check(outputs, y)
    log_density = likelihood.log_prob(outputs, y).double().cpu()
    return best_weights(log_density, torch.full((len(outputs),), 1 / len(outputs), dtype=torch.float64))


def _patched(model: Any) -> dict[str, PatchGroup]:
    """The mixing distributions of a model's patched layers, by the layer's name."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"stack_mixing takes an nn.Module, not {type(model).__name__}")
    found: dict[PatchGroup, str] = {}
    ensembles = []
    for name, module in uncompiled(model).named_modules():
        if isinstance(module, Converted) and module.inner_model() is not None:
            ensembles.append(module)
        if isinstance(module, ConvertedLayer) and isinstance(module.mixing, PatchGroup):
            found.setdefault(module.mixing, name)
    groups = {name: group for group, name in found.items() if group.components > 1}
    if groups and ensembles:
        raise ValueError("stack_mixing takes one patched network; the members of an ensemble share their probabilities")
    if not groups:
        raise ValueError(
            "the model has no layer with mixing probabilities to choose; convert some with lb.EMP or lb.ECMP. For "
            "ensembles and rank-1 mixtures, lb.analysis.stacking_weights gives the weights of the members"
        )
    return groups
