"""The total KL divergence of a model: whoever owns a distribution offers its terms, and `kl` adds them up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._owners import derived, owners
from leanbayes.noise import as_dtype
from leanbayes.posteriors._divergence import Divergence, JointTerm, Mixture
from leanbayes.posteriors._joined import joined_in_pass


def kl(model: nn.Module, mixture: Mixture = "mean", *, constant: bool | None = None) -> Tensor:
    """The total KL divergence of a model in nats: one float32 scalar, each distinct distribution counted once.

    Args:
        model: A converted model.
        mixture: What to report for mixtures over a shared component index: ``"mean"``, the mean of the components'
            divergences (an upper bound); ``"sum"``, their sum; ``"joint"``, a Monte Carlo estimate of the divergence of
            the mixture over all layers jointly (of each component index, where parts were converted separately).
        constant: Overrides `StudentT.constant` for all layers.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField(prior=lb.Normal(0, 1)))
        >>> lb.kl(model).item() > 0
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"kl takes an nn.Module, not {type(model).__name__}")
    if mixture not in ("mean", "sum", "joint"):
        raise ValueError(f"mixture is 'mean', 'sum' or 'joint', not {mixture!r}")
    offered = [term for owner in owners(model, "kl_terms") for term in owner.kl_terms(mixture, constant)]
    device = next(model.parameters(), torch.zeros(())).device
    known = sum([term for term in offered if isinstance(term, float)])
    before: list[Any] = derived(model, "kinds of divergences", list)
    terms = [
        as_dtype(term if term.device == device else term.to(device), torch.float32) for term in add_up(offered, before)
    ]
    if not terms:
        return torch.full((), float(known), device=device)
    total = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
    return total + known if known else total


def add_up(offered: list[Any], before: list[Any]) -> list[Tensor]:
    """Terms of a total that are no plain numbers: those of one kind, or of one joint mixture, put together.

    Args:
        offered: The terms.
        before: Those of the same model that were added up last, see `_kinds`; changed in place.
    """
    joint: dict[nn.Module, list[JointTerm]] = {}
    alike: dict[int, list[Divergence]] = {}
    terms: list[Tensor] = []
    kinds = iter(_kinds([term for term in offered if isinstance(term, Divergence)], before))
    for term in offered:
        if isinstance(term, Divergence):
            kind = next(kinds)
            if kind is None or term.posterior.is_measured_alone():
                terms.append(term.value())
            else:
                alike.setdefault(kind, []).append(term)
        elif isinstance(term, JointTerm):
            joint.setdefault(term.group, []).append(term)
        elif isinstance(term, Tensor):
            terms.append(term)
    return terms + [_as_one(parts).value() for parts in alike.values()] + [_joint(parts) for parts in joint.values()]


def _kinds(terms: list[Divergence], before: list[Any]) -> list[int | None]:
    """A number for each term that those of one `join_key` share, None where it has none.

    Args:
        terms: The terms.
        before: The terms that were asked about last with the answer, which is the same for the same terms.
    """
    if torch.compiler.is_compiling():  # compilers put what is alike together by themselves
        return [None] * len(terms)
    for others, kinds in before:
        if _same(terms, others):
            return kinds
    numbers: dict[Any, int] = {}
    keys = [term.join_key() for term in terms]
    kinds = [None if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    before[:] = [(terms, kinds)]
    return kinds


def _same(terms: list[Divergence], others: list[Divergence]) -> bool:
    """Whether they are of the same objects, which is quicker to see than whether these are equal."""
    if len(terms) != len(others):
        return False
    return all([a[0] is b[0] and a[1] is b[1] and a[2:] == b[2:] for a, b in zip(terms, others)])


def _as_one(parts: list[Divergence]) -> Divergence:
    if len(parts) == 1:
        return parts[0]
    posteriors, axes = [part.posterior for part in parts], parts[0].stacked_axes
    # As they are drawn, so that both can share it.
    whole = joined_in_pass(posteriors, posteriors[0].stacked_axes if axes is None else axes)
    return parts[0]._replace(posterior=whole)


def _joint(parts: list[JointTerm]) -> Tensor:
    """``1/K sum_k [log(1/K sum_j q_j(z_k)) - log p(z_k)]`` with one draw z_k from each component."""
    log_q = torch.stack([part.log_q for part in parts]).sum(0)  # [K draws, K components]
    log_p = torch.stack([part.log_p for part in parts]).sum(0)
    return (torch.logsumexp(log_q, 1) - math.log(len(log_p)) - log_p).mean()
