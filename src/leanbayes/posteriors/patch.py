"""Ensemble Model Patching: K copies of a layer's parameters, mixed per layer (EMP) or per weight (ECMP)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._checks import check_choice, check_count, check_positive
from leanbayes._registry import register_posterior
from leanbayes._sampling import Sampling, current_frame
from leanbayes.groups import ComponentGroup
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.patch_choice import chosen, fits
from leanbayes.noise import exact_products, full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import LARGE, Posterior
from leanbayes.posteriors._divergence import register_kl
from leanbayes.posteriors._joined import joined_for, pieces
from leanbayes.posteriors._learned_choice import LearnedChoice, counts
from leanbayes.posteriors._method import Method
from leanbayes.priors import HeNormal, Normal, NormalPrior, Pretrained, Prior

# Elements from which on a parameter is worth a kernel of its own.
_FEWEST = 4096


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

    def given_rows(self, spec: Sampling) -> None:
        """See `ComponentGroup`; what is said of the rows is said of the model's shared index, not of a layer's own."""

    def check_alone(self) -> None:
        """See `ComponentGroup`; a layer's own index is drawn where it is used, so that it is drawn again alike."""

    @property
    def needs_two_draws(self) -> bool:
        """Whether training compares two draws, as the gradient of learned probabilities does."""
        return self.logits is not None

    def entropy(self, like: Tensor) -> Tensor:
        """Entropy of one index in nats."""
        return -(self.probs(like) * self.log_probs(like)).sum()

    def kl_terms(self, mixture: str, constant: bool | None) -> list[Any]:
        """Minus the entropy of all indices: one for the layer, or one per element (none where nothing is patched)."""
        count = self.elements if self.per_element else min(self.elements, 1)
        if self.logits is None:
            return [-math.log(self.components) * count]
        return [-self.entropy(self.logits) * count]

    def choose(self, shape: tuple[int, ...], like: Tensor, spec: Sampling) -> Tensor:
        """Drawn indices; where probabilities are learned, the pass notes how probable each row's are."""
        log_probs = self.log_probs(like)
        index = noise.categorical(shape, log_probs.exp(), spec)
        frame = current_frame()
        if self.logits is not None and frame is not None:
            frame.choices.append(counts(index, self.components, log_probs.dtype) @ log_probs)
        return index

    def learn_from(self, chosen: Tensor, copies: Tensor, index: Tensor, spec: Sampling) -> Tensor:
        """What was chosen, with a gradient for the probabilities where they are learned, see `LearnedChoice`."""
        if self.logits is None or not torch.is_grad_enabled():
            return chosen
        log_probs = self.log_probs(chosen)
        # Samples are compared where the objective does its part of it.
        n = spec.n if spec.scores_choices else 1
        return LearnedChoice.apply(chosen, copies.detach(), log_probs, index, n)  # pyright: ignore[reportReturnType]

    def row_choice(self, rows: int, like: Tensor, spec: Sampling) -> Tensor:
        """The layer's choice for each row ``[rows]``; one per sample, ``[n]``, where all rows of a sample share it."""
        fixed = self.fixed_index(spec.n, like, spec)
        if fixed is not None:
            return fixed
        count = spec.n if spec.joint else rows
        return self.once(count, lambda: self.choose((count,), like, spec))


class PatchPosterior(Posterior):
    """K copies ``[K, *shape]`` of one parameter, of which a draw takes one (EMP) or one per element (ECMP).

    Args:
        value: The plain parameter, which the copies are centred on.
        group: The layer's mixing distribution.
        init_std: Standard deviation of the copies around it.
    """

    stacked_axes = 1

    def __init__(self, value: Tensor, group: PatchGroup, init_std: float) -> None:
        super().__init__()
        self.components = group.components
        spread = init_std * torch.randn(group.components, *value.shape, dtype=value.dtype, device=value.device)
        spread = spread - spread.mean(0)
        # Trained also where the plain parameter is frozen: patches are what the method adds to it.
        self.copies = nn.Parameter(value.detach() + spread)
        self._group = (group,)
        # A layer with one index can choose it per example.
        self.offers = frozenset({"draws"}) if group.per_element else frozenset({"draws", "copies"})
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
        group = self.group
        fixed = group.fixed_index(n, self.copies, spec)
        if fixed is not None:
            return full_precision(self.copies)[fixed]
        if group.per_element:
            drawn = _fused_choice(self.copies, group, n, spec)
            return self.take(group.choose((n, *self.shape), self.copies, spec), spec) if drawn is None else drawn
        return self.take(group.once(n, lambda: group.choose((n,), self.copies, spec)), spec)

    def take(self, index: Tensor, spec: Sampling) -> Tensor:
        """The copies of an ``index`` ``[rows]``, or of one per element: ``[rows, *shape]``."""
        copies = full_precision(self.copies)
        if self.group.per_element and index.dim() > 1:
            drawn = copies.gather(0, index)
        else:
            drawn = copies[index]
        return self.group.learn_from(drawn, copies.unsqueeze(1), index, spec)

    def join_key(self) -> tuple[Any, ...] | None:
        """See `Posterior`; patches with fixed probabilities differ in nothing but their values."""
        if self.group.logits is not None or self.copies.numel() > LARGE:
            return None
        return (type(self), self.components, self.group.per_element, self.copies.dtype, self.copies.device)

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """See `Posterior`."""
        return self.join_key() if what == "draw" else None

    @classmethod
    def draw_together(cls, parts: list[Any], what: str, n: int, spec: Sampling) -> list[Any]:
        """See `Posterior`; layers are drawn at once, and so are the indices of all of them."""
        copies = full_precision(joined_for(parts, spec, kept_axes=1).copies)  # [K, all elements]
        sizes = [part.shape.numel() for part in parts]
        group = parts[0].group
        per_element = group.per_element and group.fixed_index(n, copies, spec) is None
        drawn = _fused_choice(copies, group, n, spec) if per_element else None
        if drawn is None:
            drawn = copies.gather(0, parts[0]._joint_index(parts, sizes, n, copies, spec))  # [n, all elements]
        return pieces(drawn, [part.copies for part in parts], kept_axes=1)

    def _joint_index(self, parts: list[Any], sizes: list[int], n: int, like: Tensor, spec: Sampling) -> Tensor:
        """The copy of each element of several posteriors ``[n, all elements]``."""
        group = self.group
        fixed = group.fixed_index(n, like, spec)
        if fixed is not None:
            return fixed.unsqueeze(1).expand(n, sum(sizes))
        if group.per_element:
            return noise.categorical((n, sum(sizes)), group.probs(like), spec)
        groups = list(dict.fromkeys(part.group for part in parts))
        picked = noise.categorical((n, len(groups)), group.probs(like), spec)
        known = {
            each: each.once(n, lambda number=number: picked[:, number]).unsqueeze(1)
            for number, each in enumerate(groups)
        }
        return torch.cat([known[part.group].expand(n, size) for part, size in zip(parts, sizes)], 1)

    def mean(self, component: int | None = None) -> Tensor:
        """The mean of the mixture, or one copy."""
        if component is not None:
            return self.copies[component]
        probs = self.group.probs(self.copies)
        with exact_products(self.copies.device):
            return torch.einsum("k,k...->...", probs, full_precision(self.copies)).to(self.copies.dtype)

    @torch.no_grad()
    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        self.copies += value - self.mean()

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        self.copies.copy_(self.mean().expand_as(self.copies))


def _fused_choice(copies: Tensor, group: PatchGroup, n: int, spec: Sampling) -> Tensor | None:
    """Draws ``[n, *shape]`` with a copy per element from ``[K, *shape]`` by a kernel, None where it does not serve."""
    few = copies.shape[1:].numel() < _FEWEST or (spec.streams is not None and len(spec.streams) != n)
    if few or group.logits is not None or not fused(copies) or not fits(copies):
        return None
    return chosen(copies, group.probs(copies), noise.keys(n, copies, spec))


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
        learn_mixing: Whether the mixing probabilities are learned; `ELBO` then draws twice or more per step.
        draw: One copy for the whole "batch", or one per "example".
    """

    draw: str = "batch"

    offers: ClassVar[frozenset[str]] = frozenset({"draws", "copies"})

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
        learn_mixing: Whether the mixing probabilities are learned; `ELBO` then draws twice or more per step.
    """

    per_element: ClassVar[bool] = True
