"""Ensemble Model Patching: K copies of a layer's parameters, mixed per layer (EMP) or per weight (ECMP)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._kl import register_kl
from leanbayes._sampling import Sampling
from leanbayes.groups import ComponentGroup
from leanbayes.methods import Method, check_choice, check_count, check_positive, register_posterior
from leanbayes.noise import exact_products, full_precision
from leanbayes.posteriors._base import Posterior
from leanbayes.priors import HeNormal, Normal, NormalPrior, Pretrained, Prior

if TYPE_CHECKING:
    from leanbayes.ops import LinearOp


class PatchGroup(ComponentGroup):
    """The mixing distribution of one patched layer, shared by its weight and bias.

    Args:
        components: Number K of copies.
        learn_mixing: Whether the probabilities are learned.
        per_element: Whether every element has its own index (ECMP) or the layer has one (EMP).
    """

    def __init__(self, components: int, learn_mixing: bool, per_element: bool) -> None:
        super().__init__(components, "the patched layer", learn_mixing)
        self.per_element = per_element
        self.elements = 0

    def fixed_index(self, n: int, like: Tensor, spec: Sampling) -> Tensor | None:
        """See `ComponentGroup`; what is said of the model's shared index does not settle a layer's own."""
        if spec.component == "stratified" or isinstance(spec.component, Tensor):
            return None
        return super().fixed_index(n, like, spec)

    def check_no_rerun(self) -> None:
        """See `ComponentGroup`; a layer's own index is drawn where it is used, so that it is drawn again alike."""

    def entropy(self, like: Tensor) -> Tensor:
        """Entropy of one index in nats."""
        return -(self.probs(like) * self.log_probs(like)).sum()

    def kl(self) -> Tensor:
        """Minus the entropy of all indices: one for the layer, or one per element (none where nothing is patched)."""
        like = self.logits if self.logits is not None else torch.zeros(())
        return -self.entropy(like) * (self.elements if self.per_element else min(self.elements, 1))

    def weights(self, shape: tuple[int, ...], like: Tensor, spec: Sampling) -> Tensor:
        """One-hot choices ``[*shape, K]``, with straight-through Gumbel-softmax gradients where mixing is learned."""
        if self.logits is None:
            index = noise.categorical(shape, self.probs(like), spec)
            return nn.functional.one_hot(index, self.components).to(noise.compute_dtype(like.dtype))
        scores = self.log_probs(like) + noise.gumbel((*shape, self.components), like, spec)
        soft = scores.softmax(-1)
        hard = nn.functional.one_hot(soft.argmax(-1), self.components).to(soft.dtype)
        return hard + soft - soft.detach()


class PatchPosterior(Posterior):
    """K copies ``[K, *shape]`` of one parameter, of which a draw takes one (EMP) or one per element (ECMP).

    Args:
        value: The plain parameter, which the copies are centred on.
        group: The layer's mixing distribution.
        init_std: Standard deviation of the copies around it.
    """

    def __init__(self, value: Tensor, group: PatchGroup, init_std: float) -> None:
        super().__init__()
        self.components = group.components
        spread = init_std * torch.randn(group.components, *value.shape, dtype=value.dtype, device=value.device)
        spread = spread - spread.mean(0)
        # Trained also where the plain parameter is frozen: patches are what the method adds to it.
        self.copies = nn.Parameter(value.detach() + spread)
        self._group = (group,)
        # A layer with one index can choose it per example.
        self.estimators = ("weight",) if group.per_element else ("weight", "example")
        group.elements += value.numel()

    @property
    def group(self) -> PatchGroup:
        """The layer's mixing distribution."""
        return self._group[0]

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.copies.shape[1:]

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        if not self.group.per_element:
            return self.take(self.layer_weights(n, spec))
        fixed = self.group.fixed_index(n, self.copies, spec)
        if fixed is not None:
            return full_precision(self.copies)[fixed]
        return self._mix(self.group.weights((n, *self.shape), self.copies, spec))

    def layer_weights(self, n: int, spec: Sampling) -> Tensor:
        """The layer's choice ``[n, K]``, the same for weight and bias in one forward pass."""
        fixed = self.group.fixed_index(n, self.copies, spec)
        if fixed is not None:
            return nn.functional.one_hot(fixed, self.components).to(noise.compute_dtype(self.copies.dtype))
        return self.group.once(n, lambda: self.group.weights((n,), self.copies, spec))

    def take(self, weights: Tensor) -> Tensor:
        """The copies chosen by ``weights`` ``[rows, K]``: ``[rows, *shape]``."""
        with exact_products(self.copies.device):
            return torch.einsum("rk,k...->r...", weights, full_precision(self.copies))

    def _mix(self, weights: Tensor) -> Tensor:
        return (weights * full_precision(self.copies).movedim(0, -1)).sum(-1)

    def mean(self, component: int | None = None) -> Tensor:
        """The mean of the mixture, or one copy."""
        if component is not None:
            return self.copies[component]
        probs = self.group.probs(self.copies)
        with exact_products(self.copies.device):
            return torch.einsum("k,k...->...", probs, full_precision(self.copies)).to(self.copies.dtype)

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.copies += value - self.mean()


@register_kl(PatchPosterior, NormalPrior)
def _patch(q: PatchPosterior, p: NormalPrior) -> Tensor:
    """sum_k p_k |M_k - mean|^2 / (2 s^2); the entropy of the mixing is the group's."""
    squares = (full_precision(q.copies) - p.mean).square().flatten(1).sum(1)  # [K]
    return (q.group.probs(q.copies) * squares).sum() / (2 * p.std**2)


@dataclass(frozen=True)
class _Patch(Method):
    components: int = 5
    prior: Prior = field(default_factory=lambda: Normal(0.0, 1.0))
    init_std: float = 0.01
    learn_mixing: bool = False

    kinds: ClassVar[frozenset[str]] = Method.kinds | {"norm"}
    default_kinds: ClassVar[frozenset[str]] = frozenset({"norm", "output"})
    scope: ClassVar[str | None] = "layer"
    per_element: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_count(self, components=self.components)
        check_positive(self, init_std=self.init_std)
        check_choice(self, (True, False), learn_mixing=self.learn_mixing)
        if not isinstance(self.prior, (Normal, HeNormal, Pretrained)):
            name = type(self).__name__
            raise TypeError(f"{name}(prior=...) takes Normal, HeNormal or Pretrained, not {self.prior!r}")

    def make_group(self) -> PatchGroup:
        """The mixing distribution of one layer."""
        return PatchGroup(self.components, self.learn_mixing, self.per_element)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        assert isinstance(group, PatchGroup)
        return PatchPosterior(value, group, self.init_std)

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """See `Method`."""
        return self.build(value, None, group)

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)


@register_posterior("EMP")
@dataclass(frozen=True)
class EMP(_Patch):
    """Ensemble Model Patching (2019): K copies of a layer's parameters; each pass draws one copy per layer.

    Without `where` it takes the normalisation layers and the output layer.

    Args:
        components: Number K of copies.
        prior: Normal prior of each copy.
        init_std: Spread of the copies, centred so that their mean is the plain parameter.
        learn_mixing: Whether the mixing probabilities are learned (straight-through Gumbel-softmax).
        draw: One copy for the whole "batch", or one per "example".
    """

    draw: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, ("batch", "example"), draw=self.draw)

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
        init_std: Spread of the copies, centred so that their mean is the plain parameter.
        learn_mixing: Whether the mixing probabilities are learned (straight-through Gumbel-softmax).
    """

    per_element: ClassVar[bool] = True
