"""The total KL divergence of a model: whoever owns a distribution offers its terms, and `kl` adds them up."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._owners import WithSettings, derived, owners
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
    lasting, anew = _offers(model, mixture, constant)
    first = next(model.parameters(), None)
    device = torch.zeros(()).device if first is None else first.device
    known = lasting.known + anew.known
    terms = [
        as_dtype(term if term.device == device else term.to(device), torch.float32)
        for term in (*lasting.values(), *anew.values())
    ]
    if not terms:
        return torch.full((), float(known), device=device)
    total = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
    return total + known if known else total


class Offers(NamedTuple):
    """Terms of a total, with those together that are computed as one.

    Attributes:
        known: Sum of those that are plain numbers.
        tensors: Those that are computed already.
        alike: Divergences, kind by kind.
        joint: What joint mixtures are made of, mixture by mixture.
    """

    known: float
    tensors: list[Tensor]
    alike: list[list[Divergence]]
    joint: list[list[JointTerm]]

    def values(self) -> list[Tensor]:
        """Those that are no plain numbers."""
        divergences = [value for parts in self.alike for value in _values(parts)]
        return self.tensors + divergences + [_joint(parts) for parts in self.joint]


def put_in_order(terms: list[Any]) -> Offers:
    """The terms that owners of distributions offer."""
    alike: dict[Any, list[Divergence]] = {}
    joint: dict[nn.Module, list[JointTerm]] = {}
    # Compilers put what is alike together by themselves.
    compiling = torch.compiler.is_compiling()
    for number, term in enumerate(terms):
        if isinstance(term, Divergence):
            kind = None if compiling else term.join_key()
            alike.setdefault(number if kind is None else kind, []).append(term)
        elif isinstance(term, JointTerm):
            joint.setdefault(term.group, []).append(term)
    known = sum([term for term in terms if isinstance(term, float)])
    tensors = [term for term in terms if isinstance(term, Tensor)]
    return Offers(known, tensors, list(alike.values()), list(joint.values()))


def _offers(model: nn.Module, mixture: Mixture, constant: bool | None) -> tuple[Offers, Offers]:
    """What follows from the modules of a model and their settings, asked for once, and what is asked for every time."""
    found = owners(model, "kl_terms")  # first: what is known goes where one of them has gone
    known: list[Any] = derived(model, ("offers", mixture, constant), list)
    if known:
        lasting, others = known
        return lasting, put_in_order([term for number in others for term in found[number].kl_terms(mixture, constant)])
    lasting, others, anew = [], [], []
    for number, owner in enumerate(found):
        terms = owner.kl_terms(mixture, constant)
        if isinstance(owner, WithSettings) and all([isinstance(term, (float, Divergence)) for term in terms]):
            lasting += terms
        else:
            others.append(number)
            anew += terms
    known[:] = [put_in_order(lasting), others]
    return known[0], put_in_order(anew)


def _values(parts: list[Divergence]) -> list[Tensor]:
    """Divergences of one kind, as few as they can be computed as."""
    posteriors = [part.posterior for part in parts]
    apart = type(posteriors[0]).measured_alone(posteriors) if len(parts) > 1 else []
    if not apart:
        return [_as_one(parts).value()]
    alone = set(map(id, apart))
    values = [part.value() for part in parts if id(part.posterior) in alone]
    rest = [part for part in parts if id(part.posterior) not in alone]
    return [*values, _as_one(rest).value()] if rest else values


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
