"""DeepEnsemble: several copies of a whole model, each of any family."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from leanbayes._checks import check_choice, check_count
from leanbayes._registry import register_posterior
from leanbayes.convert.conversions import is_converted
from leanbayes.convert.convert import Report, bayesianize, open_passes
from leanbayes.convert.rules import make_plan
from leanbayes.groups import ComponentGroup
from leanbayes.nn.ensemble import Ensemble
from leanbayes.nn.reinitialise import reinitialise
from leanbayes.ops import LinearOp
from leanbayes.posteriors import Posterior
from leanbayes.posteriors._method import Method
from leanbayes.priors import Prior


@register_posterior("DeepEnsemble")
@dataclass(frozen=True)
class DeepEnsemble(Method):
    """An explicit ensemble (Lakshminarayanan et al. 2017) of plain networks, or of any other method.

    It takes the whole model, so `bayesianize` returns a new one. When trained with `ELBO`, each member gets the
    gradient of a single network, so optimisers and weight decay treat it as one.

    Args:
        members: Number of networks.
        of: The method of each member, None for plain networks; `VarianceLayer()` gives the variance ensemble of
            Variance Networks.
        reinit: Draw fresh parameters, buffers and statistics for each member; otherwise all start from the model's own.
    """

    members: int = 5
    of: Method | None = None
    reinit: bool = True

    scope: ClassVar[str | None] = "model"
    whole_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count(self, members=self.members)
        check_choice(self, (True, False), reinit=self.reinit)
        if self.of is not None and not isinstance(self.of, Method):
            raise TypeError(f"DeepEnsemble(of=...) takes a method such as lb.VarianceLayer(), not {self.of!r}")
        if isinstance(self.of, DeepEnsemble):
            raise ValueError("DeepEnsemble(of=DeepEnsemble(...)) is one larger ensemble; add the members up instead")

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """Not used: an ensemble is made of whole models."""
        raise TypeError("a deep ensemble is over whole models, not over one weight")

    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """See `Method`."""
        return None

    def convert_model(self, model: nn.Module, where: Any, freeze: bool) -> nn.Module:
        """See `Method`."""
        self._check(model, where, freeze)
        members: list[nn.Module] = []
        redrawn: list[str] = []
        for _ in range(self.members):
            member = copy.deepcopy(model)
            if self.reinit:
                redrawn = reinitialise(member)
            members.append(member if self.of is None else bayesianize(member, self.of, where=where, freeze=freeze))
        inner: Any = getattr(members[0], "leanbayes_report", None)
        report = Report([("", type(model).__name__, self)], inner.left if inner else [], inner.notes if inner else [])
        report.notes += [(name, "no reset_parameters of its own: redrawn with its mean and spread") for name in redrawn]
        return open_passes(Ensemble(members, self), report)

    def _check(self, model: nn.Module, where: Any, freeze: bool) -> None:
        if self.of is not None:
            make_plan(model, self.of, where)
            return
        if where is not None:
            raise ValueError("where= chooses layers for the members' method; a plain ensemble takes the whole model")
        if is_converted(model):
            raise ValueError(
                "the model is already converted; an ensemble is made of plain models (of=... converts them)"
            )
        if next(model.parameters(), None) is None:
            raise ValueError(f"this {type(model).__name__} has no parameters to make an ensemble of")
        if freeze:
            raise ValueError("freeze=True leaves nothing to train in an ensemble of plain networks")
