"""The methods of Ensemble Model Patching, and the family that they are members of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from leanbayes._checks import check_choice, check_count, check_number, check_positive, is_number
from leanbayes._registry import register_posterior
from leanbayes.groups import ComponentGroup
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior
from leanbayes.posteriors._method import Method
from leanbayes.posteriors.patch import PatchGroup, PatchPosterior
from leanbayes.priors import HeNormal, Normal, Pretrained, Prior


@dataclass(frozen=True)
class _Patch(Method):
    components: int = 5
    prior: Prior = field(default_factory=lambda: Normal(0.0, 1.0))
    init_std: float = 0.01
    learn_mixing: bool = False
    init: str = field(default="centred", kw_only=True)
    bias_prior: Prior | None = field(default=None, kw_only=True)
    mixing: tuple[float, ...] | None = field(default=None, kw_only=True)
    zero: bool = field(default=False, kw_only=True)
    sigma: float = field(default=0.0, kw_only=True)

    kinds: ClassVar[frozenset[str]] = Method.kinds | {"norm"}
    default_kinds: ClassVar[frozenset[str]] = frozenset({"norm", "output"})
    scope: ClassVar[str | None] = "layer"
    assign: ClassVar[str] = "layer"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_count(self, components=self.components)
        check_positive(self, init_std=self.init_std)
        check_number(self, 0, sigma=self.sigma)
        for key in ("learn_mixing", "zero"):
            check_choice(self, (True, False), **{key: getattr(self, key)})
        check_choice(self, ("centred", "independent"), init=self.init)
        for key, prior in (("prior", self.prior), ("bias_prior", self.bias_prior or self.prior)):
            if not isinstance(prior, (Normal, HeNormal, Pretrained)):
                raise TypeError(f"{name}({key}=...) takes Normal, HeNormal or Pretrained, not {prior!r}")
        if self.zero and self.components < 2:
            raise ValueError(f"{name}(zero=True) needs a component besides the zero one: components must be at least 2")
        if self.mixing is not None:
            self._check_mixing(self.mixing)

    def _check_mixing(self, mixing: tuple[float, ...]) -> None:
        name = type(self).__name__
        object.__setattr__(self, "mixing", tuple(mixing))
        right = len(mixing) == self.components and all(is_number(p) and p > 0 for p in mixing)
        if not right or abs(sum(mixing) - 1) > 1e-6:
            raise ValueError(
                f"{name}(mixing=...) takes {self.components} probabilities above 0 with a sum of 1, not {mixing!r}"
            )
        if self.learn_mixing:
            raise ValueError(f"{name} takes fixed probabilities (mixing) or learn_mixing=True, not both")

    def make_group(self) -> ComponentGroup | None:
        """The mixing distribution of one layer."""
        if self.assign == "model":
            return None
        return PatchGroup(self.components, self.learn_mixing, self.assign in ("element", "input"), self.mixing)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        assert group is not None
        inputs = op if self.assign == "input" else None
        return PatchPosterior(
            value, group, self.init_std, self.init == "independent", zero=self.zero, sigma=self.sigma, inputs=inputs
        )

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """See `Method`."""
        return self.build(value, None, group)

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)

    def bind_bias_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return (self.bias_prior or self.prior).bind(value, fan)


@register_posterior("EMP")
@dataclass(frozen=True)
class EMP(_Patch):
    """Ensemble Model Patching (2019): K copies of a layer's parameters; each pass draws one copy per layer.

    Without `where` it takes the normalisation layers and the output layer.

    Args:
        components: Number K of copies.
        prior: Normal prior of each copy.
        init_std: Spread of the copies.
        learn_mixing: Whether the mixing probabilities are learned; `ELBO` then draws twice or more per step.
        init: "centred" around the plain parameter, which is their mean, to patch a trained network; "independent" to
            train from scratch: each copy has the parameter's elements in a different order, plus the spread.
        bias_prior: Normal prior of biases and shifts; None uses that of the weights.
        mixing: Fixed mixing probabilities; None makes them equal.
        zero: Whether the last component is fixed at zero, as in dropout.
        sigma: Standard deviation of the noise of a component.
        draw: One copy for the whole "batch", or one per "example".
    """

    draw: str = "batch"

    offers: ClassVar[frozenset[str]] = frozenset({"draws", "copies"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, ("batch", "example"), draw=self.draw)
        if self.draw == "example" and (self.zero or self.sigma):
            raise ValueError(
                "EMP(draw='example') applies every copy, and takes neither zero nor sigma; use draw='batch'"
            )

    @property
    def wanted_estimator(self) -> str:
        """See `Method`."""
        return "example" if self.draw == "example" else "weight"


@register_posterior("ECMP")
@dataclass(frozen=True)
class ECMP(_Patch):
    """Ensemble Cross-Model Patching (2019): as `EMP`, but each weight is drawn from one of the K copies on its own.

    Args:
        components: Number K of copies.
        prior: Normal prior of each copy.
        init_std: Spread of the copies.
        learn_mixing: Whether the mixing probabilities are learned; `ELBO` then draws twice or more per step.
        init: "centred" around the plain parameter, which is their mean, to patch a trained network; "independent" to
            train from scratch: each copy has the parameter's elements in a different order, plus the spread.
        bias_prior: Normal prior of biases and shifts; None uses that of the weights.
        mixing: Fixed mixing probabilities; None makes them equal.
        zero: Whether the last component is fixed at zero, as in dropout.
        sigma: Standard deviation of the noise of a component.
    """

    assign: ClassVar[str] = "element"


@register_posterior("Patch")
@dataclass(frozen=True)
class Patch(_Patch):
    """The family to which `EMP`, `ECMP`, dropout, DropConnect and explicit ensembles belong (EMP 2019, eq. 1).

    A parameter is ``sum_k 1[Z = k] (M_k + sigma e_k)``. Its members differ in what shares an index Z, and in whether a
    component is fixed at zero:

    - EMP: ``Patch(assign="layer")``, ECMP: ``Patch(assign="element")``;
    - an explicit ensemble: ``Patch(assign="model")`` on all layers;
    - dropout: ``Patch(2, assign="input", zero=True, mixing=(1 - p, p))``, DropConnect the same with
      ``assign="element"``, on the weights that are dropped.

    Args:
        components: Number K of components.
        prior: Normal prior of each.
        init_std: Spread of the copies.
        learn_mixing: Whether the mixing probabilities are learned, where a layer has them.
        init: "centred" or "independent", as in `EMP`.
        bias_prior: Normal prior of biases; None uses that of the weights.
        mixing: Fixed mixing probabilities; None makes them equal.
        zero: Whether the last component is fixed at zero.
        sigma: Standard deviation of the noise of a component.
        assign: What has its own index: each "layer", "element" or "input" feature of a weight, or the whole "model".
    """

    assign: str = "layer"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, ("layer", "element", "input", "model"), assign=self.assign)
        if self.assign == "model" and (self.learn_mixing or self.mixing is not None):
            raise ValueError(
                "Patch(assign='model') has equal probabilities: predictions go through its components in turn"
            )
        if self.assign == "input" and self.learn_mixing:
            raise ValueError("Patch(assign='input') has fixed probabilities; pass mixing")

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """See `Method`; a bias beside weights that may be zero is a point, as in dropout."""
        return None if self.zero or self.assign == "input" else super().build_bias(value, group)

    @property
    def scope(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return "model" if self.assign == "model" else "layer"

    @property
    def kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`; a norm has no input features to choose by."""
        return Method.kinds if self.assign == "input" else _Patch.kinds

    @property
    def default_kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return Method.default_kinds if self.assign in ("input", "model") else _Patch.default_kinds
