"""KL divergences by registered pairs of posterior and prior, and their total over a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling

if TYPE_CHECKING:
    from leanbayes.posteriors._base import Posterior
    from leanbayes.priors._base import Prior

Mixture = Literal["mean", "sum", "joint"]
KLFunction = Callable[[Any, Any], Tensor]

_PAIRS: dict[tuple[type, type], KLFunction] = {}
# Draws of one Monte Carlo term; the estimate is unbiased for any number.
MONTE_CARLO_DRAWS = 8


def register_kl(q: type, p: type) -> Callable[[KLFunction], KLFunction]:
    """Register the divergence of a posterior class from a prior class; the most specific pair wins.

    The function takes the posterior and the bound prior and returns a scalar, summed over all elements.
    """

    def add(function: KLFunction) -> KLFunction:
        if (q, p) in _PAIRS:
            raise ValueError(f"the KL divergence of {q.__name__} from {p.__name__} is registered already")
        _PAIRS[q, p] = function
        return function

    return add


def find_kl(q: type, p: type) -> KLFunction | None:
    """The registered function of the most specific pair, None where there is none."""
    for posterior in q.__mro__:
        for prior in p.__mro__:
            if (posterior, prior) in _PAIRS:
                return _PAIRS[posterior, prior]
    return None


def why_infinite(q: Posterior, p: Prior | None) -> str | None:
    """Why the divergence is infinite or undefined, None where it is fine."""
    if p is None or find_kl(type(q), type(p)) is not None:
        return None
    name, prior = type(q).__name__.removesuffix("Posterior"), type(p).__name__
    if not p.proper or not q.has_log_prob:
        return f"no KL divergence of a {name} posterior from the prior {prior} is known; choose another prior"
    if q.heavy_tailed and not p.heavy_tailed:
        return f"a {name} posterior under a {prior} prior has an infinite KL divergence; choose a heavy-tailed prior"
    if q.support == "real" and p.support == "positive":
        return (
            f"a {name} posterior under the positive {prior} prior has an infinite KL divergence; choose another prior"
        )
    return None


def kl_divergence(q: Posterior, p: Prior | None, *, mixture: str = "mean", constant: bool | None = None) -> Tensor:
    """KL(q || p) in nats, summed over the elements: closed form where registered, Monte Carlo otherwise.

    Args:
        q: The posterior.
        p: The bound prior; None counts 0.
        mixture: For mixtures over a shared index: mean over components, or their sum.
        constant: Overrides `StudentT.constant`.
    """
    from leanbayes.posteriors.rank1 import Rank1Posterior
    from leanbayes.priors import StudentT

    if isinstance(q, Rank1Posterior):
        return q.factor_kl(mixture)
    if p is None:
        return torch.zeros((), device=next(q.parameters()).device)
    function = find_kl(type(q), type(p))
    if function is None:
        problem = why_infinite(q, p)
        if problem is not None:
            raise ValueError(problem)
        return monte_carlo_kl(q, p, MONTE_CARLO_DRAWS)
    if constant is not None and isinstance(p, StudentT):
        p = StudentT(p.df, constant)
    return function(q, p)


def monte_carlo_kl(q: Posterior, p: Prior, draws: int) -> Tensor:
    """E_q[log q - log p] by `draws` reparameterised draws, summed over the elements."""
    w = q.rsample(draws, Sampling(n=draws))
    return (q.log_prob(w) - p.log_prob(w)).sum() / draws


def random_parameters(model: nn.Module) -> Iterator[Any]:
    """Each RandomParameter of a model once."""
    from leanbayes.parameter import RandomParameter

    for module in model.modules():
        if isinstance(module, RandomParameter):
            yield module


def _owners(model: nn.Module) -> list[nn.Module]:
    """The modules that report a divergence, each once; what is inside an ensemble is the ensemble's to report."""
    from leanbayes.nn.ensemble import Ensemble
    from leanbayes.parameter import RandomParameter
    from leanbayes.posteriors.patch import PatchGroup

    hidden = {id(m) for e in model.modules() if isinstance(e, Ensemble) for m in e.modules() if m is not e}
    kinds = (Ensemble, RandomParameter, PatchGroup)
    return [m for m in model.modules() if isinstance(m, kinds) and id(m) not in hidden]


def shared_components(model: nn.Module) -> int:
    """Number of components of the index that serves the whole model, 1 where there is none."""
    from leanbayes.nn.ensemble import Ensemble

    for module in model.modules():
        if isinstance(module, Ensemble):
            return module.components
    for parameter in random_parameters(model):
        if parameter.posterior.shared_index:
            return parameter.posterior.components
    return 1


def kl(model: nn.Module, mixture: Mixture = "mean", *, constant: bool | None = None) -> Tensor:
    """The total KL divergence of a model in nats: one float32 scalar, each distinct distribution counted once.

    Args:
        model: A converted model.
        mixture: What to take of mixtures over a shared component index: ``"mean"``, the mean of the components'
            divergences (an upper bound); ``"sum"``, their sum; ``"joint"``, a Monte Carlo estimate of the
            divergence of the mixture over all layers jointly (of each component index, where parts were converted
            on their own).
        constant: Overrides `StudentT.constant` for all layers.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField(prior=lb.Normal(0, 1)))
        >>> lb.kl(model).item() > 0
        True
    """
    from leanbayes.nn.ensemble import Ensemble
    from leanbayes.parameter import RandomParameter
    from leanbayes.posteriors.rank1 import Rank1Posterior, joint_kl

    if mixture not in ("mean", "sum", "joint"):
        raise ValueError(f"mixture is 'mean', 'sum' or 'joint', not {mixture!r}")
    terms: list[Tensor] = []
    joint: dict[nn.Module, list[Rank1Posterior]] = {}  # by the component index that they share
    for owner in _owners(model):
        if isinstance(owner, Ensemble):
            terms.append(owner.member_kl(mixture, constant))
        elif not isinstance(owner, RandomParameter):
            terms.append(owner.kl())  # pyright: ignore[reportCallIssue]
        elif mixture == "joint" and isinstance(owner.posterior, Rank1Posterior):
            joint.setdefault(owner.posterior.group, []).append(owner.posterior)
        else:
            terms.append(owner.kl(mixture, constant))
    terms += [joint_kl(posteriors) for posteriors in joint.values()]
    device = next(model.parameters(), torch.zeros(())).device
    if not terms:
        return torch.zeros((), device=device)
    return torch.stack([term.float().to(device) for term in terms]).sum()
