"""What every method is: the posterior family that users write, with its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from leanbayes._estimator_registry import check_estimator
from leanbayes.groups import ComponentGroup
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior
from leanbayes.priors import Prior


@dataclass(frozen=True)
class Method(ABC):
    """A posterior family with its settings, a prior and an estimator.

    Attributes:
        kinds: The kinds of modules that the family supports, among "linear", "embedding", "recurrent", "attention",
            "bilinear", "norm", "dropout".
        default_kinds: Those that it takes without `where`.
        scope: Who shares one component index: "model", "layer", or None where there is no mixture or each element
            has its own.
        offers: What its posteriors offer to estimators, see `Posterior`.
        per_example: Whether each example has to draw its own weights in recurrent and bilinear layers too, which
            otherwise draw one for all rows.
        whole_model: Whether it takes a whole model, through `convert_model`, rather than single layers, through
            `build`.
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"linear", "embedding", "recurrent", "attention", "bilinear"})
    default_kinds: ClassVar[frozenset[str]] = frozenset({"linear", "recurrent", "attention", "bilinear"})
    scope: ClassVar[str | None] = None
    offers: ClassVar[frozenset[str]] = Posterior.offers
    per_example: ClassVar[bool] = False
    whole_model: ClassVar[bool] = False

    @abstractmethod
    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """The posterior for a weight `value` under `op` (None for a bias or a norm's scale)."""

    @abstractmethod
    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """The prior for a weight or bias of a layer with `fan` inputs per output, None where there is no KL."""

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """The posterior for a bias, None to leave it a point."""
        return None

    def bind_bias_prior(self, value: Tensor, fan: int) -> Prior | None:
        """The prior for a bias; that of a weight, unless the method has another."""
        return self.bind_prior(value, fan)

    def make_group(self) -> ComponentGroup | None:
        """The index of one layer, where each layer has its own."""
        return None

    def fallback(self, value: Tensor, op: LinearOp | None) -> tuple[Method, str] | None:
        """Another method, with the reason, for a weight that this one does not suit; None if it does."""
        return None

    def convert_model(self, model: nn.Module, where: Any, freeze: bool) -> nn.Module:
        """The converted model, for methods that take whole models; called by `bayesianize`."""
        raise TypeError(f"{type(self).__name__} takes single layers")

    @property
    def wanted_estimator(self) -> str:
        """The estimator asked for, "auto" for the best under which an example meets one weight."""
        return getattr(self, "estimator", "auto")

    def _check_estimator(self, name: str) -> None:
        """Raise where no estimator of that name can use what the family offers."""
        check_estimator(type(self).__name__, name, self.offers)


def check_prior(owner: object, prior: object) -> None:
    """Raise where a prior is no prior."""
    if not isinstance(prior, Prior):
        raise TypeError(f"{type(owner).__name__}(prior=...) takes a prior such as lb.Normal(0, 1), not {prior!r}")


def fan_in(value: Tensor, op: LinearOp | None) -> int:
    """Number of weights that one output sums over (1 for a norm's scale and for an embedding)."""
    if op is None or op.index_input:
        return 1
    return max(1, value.numel() // op.out_features)
