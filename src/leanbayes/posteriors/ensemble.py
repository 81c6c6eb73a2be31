"""Deep ensembles: several copies of a whole model, each of any family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from leanbayes.methods import Method, check_choice, check_count, register_posterior
from leanbayes.priors import Prior

if TYPE_CHECKING:
    from leanbayes.groups import ComponentGroup
    from leanbayes.ops import LinearOp
    from leanbayes.posteriors._base import Posterior


@register_posterior("DeepEnsemble")
@dataclass(frozen=True)
class DeepEnsemble(Method):
    """An explicit ensemble (Lakshminarayanan et al. 2017) of plain networks, or of any other method.

    It takes the whole model, so `bayesianize` returns a new one.

    Args:
        members: Number of networks.
        of: The method of each member, None for plain networks; `VarianceLayer()` gives VN's variance ensemble.
        reinit: Fresh parameters, buffers and statistics per member; else all start from the model's own.
    """

    members: int = 5
    of: Method | None = None
    reinit: bool = True

    scope: ClassVar[str | None] = "model"

    def __post_init__(self) -> None:
        check_count(self, members=self.members)
        check_choice(self, (True, False), reinit=self.reinit)
        if self.of is not None and not isinstance(self.of, Method):
            raise TypeError(f"DeepEnsemble(of=...) takes a method such as lb.VarianceLayer(), not {self.of!r}")
        if isinstance(self.of, DeepEnsemble):
            raise ValueError("DeepEnsemble(of=DeepEnsemble(...)) is one larger ensemble; add the members up instead")

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """Not used: an ensemble is built of whole models (see `leanbayes.nn.ensemble`)."""
        raise TypeError("a deep ensemble is over whole models, not over one weight")

    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """See `Method`."""
        return None
