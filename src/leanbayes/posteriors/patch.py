"""Ensemble Model Patching: K copies of a layer's parameters, mixed per layer (EMP) or per weight (ECMP)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._moves import of_stacks
from leanbayes._sampling import Sampling, current_frame
from leanbayes.groups import Column, ComponentGroup
from leanbayes.kernels._autograd import traced
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.patch_choice import chosen, fits
from leanbayes.noise import exact_products, full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior, may_join
from leanbayes.posteriors._divergence import register_kl
from leanbayes.posteriors._joined import fact, joined_for, pieces, single
from leanbayes.posteriors._learned_choice import LearnedChoice, counts
from leanbayes.posteriors._squares import sum_of_squares
from leanbayes.priors import NormalPrior

# Elements from which on the choice of a copy for each is worth a kernel: of fewer, as all norms of a network together
# have, compilers make part of what uses them.
_FEWEST = 2**18
# Elements of all copies up to which compilers are given comparisons in the place of an index.
_COMPARED = 2**20
# Elements up to which copies are gathered together.
_SMALL = 4096


class FoundProbs(nn.Module):
    """Mixing probabilities that were found after training, in the place of those that a method gave.

    A module of its own: a model that has it consists of other modules, which is how caches know that it has changed.

    Args:
        log_probs: Their logarithms ``[K]``.
    """

    log_probs: Tensor

    def __init__(self, log_probs: Tensor) -> None:
        super().__init__()
        self.register_buffer("log_probs", log_probs)


class PatchGroup(ComponentGroup):
    """The mixing distribution of one patched layer, shared by its weight and bias.

    Args:
        components: Number K of components.
        learn_mixing: Whether the probabilities are learned.
        per_element: Whether every element has its own index (ECMP) or the layer has one (EMP).
        mixing: Probabilities ``[K]`` that stay as they are, equal ones where None.
    """

    def __init__(
        self, components: int, learn_mixing: bool, per_element: bool, mixing: tuple[float, ...] | None = None
    ) -> None:
        super().__init__(components, "the patched layer", learn_mixing)
        self.per_element = per_element
        self.mixing = mixing
        self.found: FoundProbs | None = None
        # How many indices there are, where not one for the layer.
        self.elements = 0

    @property
    def equal(self) -> bool:
        """See `ComponentGroup`."""
        return self.logits is None and self.mixing is None and self.found is None

    def log_probs(self, like: Tensor) -> Tensor:
        """See `ComponentGroup`."""
        if self.found is not None:
            return self.found.log_probs.to(like.device, noise.compute_dtype(like.dtype)).log_softmax(0)
        if self.mixing is None:
            return super().log_probs(like)
        return torch.tensor(self.mixing, dtype=noise.compute_dtype(like.dtype), device=like.device).log()

    @torch.no_grad()
    def set_probs_(self, probs: Tensor) -> None:
        """Mix by other probabilities ``[K]`` from now on; those that are learned go on from there."""
        log_probs = full_precision(probs).log()
        if self.logits is not None:
            self.logits.copy_(log_probs)
        elif self.found is not None:
            self.found.log_probs.copy_(log_probs)
        else:
            self.found = FoundProbs(log_probs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        log_probs = state_dict.get(f"{prefix}found.log_probs")
        if isinstance(log_probs, Tensor) and self.found is None:
            self.found = FoundProbs(torch.zeros_like(log_probs))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

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
        values = self.logits if self.found is None else self.found.log_probs
        if values is not None:
            return [-self.entropy(values) * count]
        if self.mixing is None:
            return [-math.log(self.components) * count]
        return [sum(p * math.log(p) for p in self.mixing if p > 0) * count]

    def choose(self, shape: tuple[int, ...], like: Tensor, spec: Sampling) -> Tensor:
        """Drawn indices; where an objective scores them, the pass notes how probable each row's are."""
        index = self.pick(shape, like, spec)
        frame = current_frame()
        if self.logits is not None and frame is not None and spec.scores_choices:
            log_probs = self.log_probs(like)
            frame.choices.append(counts(index, self.components, log_probs.dtype) @ log_probs)
        return index

    def learn_from(self, chosen: Tensor, copies: Tensor, index: Tensor, spec: Sampling) -> Tensor:
        """What was chosen, with a gradient for the probabilities where they are learned, see `LearnedChoice`."""
        if self.logits is None or not torch.is_grad_enabled() or self.given_rows(spec) is not None:
            return chosen
        log_probs = self.log_probs(chosen)
        # Samples are compared where the objective does its part of it.
        n = spec.n if spec.scores_choices else 1
        return LearnedChoice.apply(chosen, copies.detach(), log_probs, index, n)  # pyright: ignore[reportReturnType]

    def row_choice(self, rows: int, like: Tensor, spec: Sampling) -> Tensor:
        """The layer's choice for each row ``[rows]``; one per sample, ``[n]``, where all rows of a sample share it."""
        if self.given_rows(spec) is not None:
            return self.row_index(rows, like, spec)
        fixed = self.fixed_index(spec.n, like, spec)
        if fixed is not None:
            return fixed
        count = spec.n if spec.joint else rows
        return self.once(count, lambda: self.choose((count,), like, spec))


class PatchPosterior(Posterior):
    """K components of one parameter, of which a draw takes one, one per element, or one per input feature.

    A component is a copy of the parameter, or zero, under Gaussian noise or none.

    Args:
        value: The plain parameter, which the copies start from.
        group: The mixing distribution: the layer's, or the model's where one index serves all its layers.
        init_std: Standard deviation of the copies around it.
        independent: Whether the copies start independently, as parameters of as many layers would, or centred, so that
            the mean of the mixture is the parameter.
        zero: Whether the last component is fixed at zero.
        sigma: Standard deviation of the noise of a component.
        inputs: The op of a weight whose index is one per input feature.
    """

    stacked_axes = 1

    def __init__(
        self,
        value: Tensor,
        group: ComponentGroup,
        init_std: float,
        independent: bool = False,
        *,
        zero: bool = False,
        sigma: float = 0.0,
        inputs: LinearOp | None = None,
    ) -> None:
        super().__init__()
        self.components = group.components
        self.zero = zero
        self.sigma = sigma
        self.inputs = inputs
        self._group = (group,)
        count = group.components - zero
        value = value.detach()
        spread = init_std * torch.randn(count, *value.shape, dtype=value.dtype, device=value.device)
        if independent:
            start = _shuffled(value, count) + spread
        else:
            probs = group.probs(value).to(value.dtype)[:count]
            centre = torch.einsum("k,k...->...", probs / probs.sum(), spread)
            # First the difference, which is 0 of a single copy: that is the plain value, bit for bit.
            start = (value / probs.sum() if zero else value) + (spread - centre)
        # Trained also where the plain parameter is frozen: patches are what the method adds to it.
        self.copies = nn.Parameter(start)
        # A layer with one index can choose it per example.
        by_layer = isinstance(group, PatchGroup) and not group.per_element
        self.offers = frozenset({"draws", "copies"}) if by_layer and not (zero or sigma) else frozenset({"draws"})
        if isinstance(group, PatchGroup):
            group.elements += value.numel() if inputs is None else inputs.features(value.shape, inputs.in_axis)

    @property
    def group(self) -> Any:
        """The mixing distribution."""
        return self._group[0]

    def component_group(self) -> ComponentGroup | None:
        """See `Posterior`; a layer's own index is drawn with it."""
        return None if isinstance(self.group, PatchGroup) else self.group

    def deterministic(self) -> bool:
        """See `Posterior`."""
        return self.sigma == 0 and self.component_group() is not None

    @property
    def draws_copies(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Posterior`."""
        return isinstance(self.group, PatchGroup) and not self.group.per_element and self.sigma == 0

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.copies.shape[1:]

    def stack(self) -> Tensor:
        """See `Posterior`; the centres where components have noise."""
        copies = full_precision(self.copies)
        return torch.cat([copies, torch.zeros_like(copies[:1])]) if self.zero else copies

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        drawn = self._centres(n, spec)
        if self.sigma:
            drawn = drawn + self.sigma * noise.normal((n, *self.shape), self.copies, spec)
        return drawn

    def _centres(self, n: int, spec: Sampling) -> Tensor:
        group = self.group
        if not isinstance(group, PatchGroup):
            return self.stack()[group.index(n, self.copies, spec)]
        fixed = group.fixed_index(n, self.copies, spec)
        if fixed is not None:
            return self.stack()[fixed]
        if self.inputs is not None:
            return self._by_feature(n, spec)
        if group.per_element:
            drawn = None if self.zero else _fused_choice(self.copies, group, n, spec)
            return self.take(group.choose((n, *self.shape), self.copies, spec), spec) if drawn is None else drawn
        return self.take(self.choice(n, spec), spec)

    def choice(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        fixed = self.group.fixed_index(n, self.copies, spec)
        return self.group.once(n, lambda: self.group.choose((n,), self.copies, spec)) if fixed is None else fixed

    def _by_feature(self, n: int, spec: Sampling) -> Tensor:
        """Draws in which all weights of an input feature take one component."""
        assert self.inputs is not None
        features = self.inputs.features(self.shape, self.inputs.in_axis)
        index = self.group.choose((n, features), self.copies, spec)
        drawn = torch.zeros((n, *self.shape), dtype=noise.compute_dtype(self.copies.dtype), device=self.copies.device)
        for number, copy in enumerate(full_precision(self.copies)):
            chosen = (index == number).to(drawn.dtype)
            drawn = drawn + copy * self.inputs.outer(self.shape, chosen, None)
        return drawn

    def take(self, index: Tensor, spec: Sampling) -> Tensor:
        """The copies of an ``index`` ``[rows]``, or of one per element: ``[rows, *shape]``."""
        copies = self.stack()
        by_element = self.group.per_element and index.dim() > 1
        if torch.compiler.is_compiling() and torch.is_grad_enabled() and copies.numel() <= _COMPARED:
            drawn = _compared(copies, index if by_element else index.view(-1, *(1,) * (copies.dim() - 1)))
        elif by_element:
            drawn = copies.gather(0, index)
        else:
            drawn = copies[index]
        if self.group.logits is None:
            return drawn
        return self.group.learn_from(drawn, copies.unsqueeze(1), index, spec)

    def join_key(self) -> tuple[Any, ...] | None:
        """See `Posterior`; patches with equal probabilities differ in nothing but their values."""
        group = self.group
        plain = isinstance(group, PatchGroup) and group.equal
        copies = self.copies
        if not plain or self.zero or self.sigma or self.inputs is not None or not may_join(copies):
            return None
        return (type(self), self.components, group.per_element, copies.dtype, copies.device)

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """See `Posterior`."""
        return self.join_key() if what == "draw" or (what == "choice" and self.draws_copies) else None

    @classmethod
    def draw_together(cls, parts: list[Any], what: str, n: int, spec: Sampling) -> Sequence[Any]:
        """See `Posterior`; layers are drawn at once, and so are the indices of all of them."""
        group = parts[0].group
        if group.per_element:
            whole = joined_for(parts, spec, kept_axes=1)
            return pieces(single(_by_element(whole.stack(), group, n, spec)), whole.laid_out["copies"])
        layers = fact(parts, "layers", lambda: _Layers(parts))
        picked = _choose_together(layers.groups, n, parts[0].copies, spec)  # [n, layers]
        if what == "choice":
            return [picked[:, column] for column in layers.columns]
        # Without a gradient, a large copy is better taken whole than element by element, and by whoever wants it.
        small = layers.every if torch.is_grad_enabled() else layers.small
        found: list[Any] = [None] * len(parts)
        if small:
            some = parts if len(small) == len(parts) else [parts[number] for number in small]
            whole = joined_for(some, spec, kept_axes=1)
            drawn = whole.stack().gather(0, layers.index(picked, small))  # [n, all elements]
            for number, piece in zip(small, pieces(single(drawn), whole.laid_out["copies"])):
                found[number] = piece
        return found

    def mean(self, component: int | None = None) -> Tensor:
        """The mean of the mixture, or one copy."""
        if component is not None:
            return self.stack()[component].to(self.copies.dtype)
        probs = self.group.probs(self.copies)[: len(self.copies)]
        with exact_products(self.copies.device):
            return torch.einsum("k,k...->...", probs, full_precision(self.copies)).to(self.copies.dtype)

    @torch.no_grad()
    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        self.copies += (value - self.mean()) / self.group.probs(self.copies)[: len(self.copies)].sum()

    def _apply(self, fn: Any, recurse: bool = True) -> PatchPosterior:
        return super()._apply(of_stacks(fn), recurse)

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        centre = self.mean()
        if self.zero:  # what stays zero would still be noise
            self.copies, self.zero = nn.Parameter(torch.cat([self.copies, self.copies[:1]])), False
        self.copies.copy_(centre.expand_as(self.copies))
        self.sigma = 0.0


def _compared(copies: Tensor, index: Tensor) -> Tensor:
    """``copies[index]``, of copies ``[K, *shape]`` and an index that broadcasts with ``[n, *shape]``.

    Of comparisons compilers make part of what is beside them in both passes. Gradients of an index take a kernel that
    fills them with zeros and one that adds to them.
    """
    shape, frame = (copies.shape[0], *(1,) * copies.dim()), current_frame()
    if frame is None:
        numbers = _numbers(shape, copies.device)
    else:  # the same for all layers
        place = f"numbers {shape} {copies.device}"
        if place not in frame.kept:
            frame.kept[place] = _numbers(shape, copies.device)
        numbers = frame.kept[place]
    return torch.where(index == numbers, copies.unsqueeze(1), 0.0).sum(0)


def _numbers(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.arange(shape[0], device=device).view(shape)


def _shuffled(value: Tensor, copies: int) -> Tensor:
    """The value and shuffles of it ``[copies, *shape]``: where its elements were drawn alike, other such draws."""
    flat = value.flatten()
    rest = [flat[torch.randperm(flat.numel(), device=flat.device)].view_as(value) for _ in range(copies - 1)]
    return torch.stack([value, *rest])


class _Layers:
    """Whose indices several posteriors follow.

    Attributes:
        groups: The mixing distributions, one for each layer.
        columns: For each posterior the number of its layer.
        sizes: For each posterior the number of its elements.
        every: Numbers of all posteriors.
        small: Numbers of those with few elements.
    """

    def __init__(self, parts: Sequence[PatchPosterior]) -> None:
        self.groups: list[PatchGroup] = list(dict.fromkeys(part.group for part in parts))
        place = {group: number for number, group in enumerate(self.groups)}
        self.columns = tuple([place[part.group] for part in parts])
        self.sizes = tuple([part.shape.numel() for part in parts])
        self.every = tuple(range(len(parts)))
        self.small = tuple(number for number, size in enumerate(self.sizes) if size < _SMALL)

    def index(self, picked: Tensor, numbers: tuple[int, ...]) -> Tensor:
        """Choices ``[n, layers]`` as one index ``[n, all elements]`` of some of the posteriors."""
        columns, sizes = self.columns, self.sizes
        if len(numbers) < len(columns):
            columns, sizes = (tuple([each[number] for number in numbers]) for each in (columns, sizes))
        if traced():  # where nothing is copied from the host, as steps of networks side by side are recorded
            runs = [picked[:, column, None].expand(-1, size) for column, size in zip(columns, sizes)]
            return torch.cat(runs, 1)
        return picked.index_select(1, _make_numbers(columns, sizes, picked.device))


def _choose_together(groups: Sequence[PatchGroup], n: int, like: Tensor, spec: Sampling) -> Tensor:
    """The copies that n draws of several layers take, ``[n, layers]``."""
    frame = current_frame()
    kept: dict[Any, Any] = {} if frame is None else frame.kept
    keys = [(id(group.identity), n) for group in groups]
    settled: dict[int, Tensor] = {}
    if not (spec.leaves_components_open() and kept.keys().isdisjoint(keys)):
        known = [group.known_index(n, like, spec) for group in groups]
        settled = {number: index for number, index in enumerate(known) if index is not None}
        if len(settled) == len(groups):
            return torch.stack(list(settled.values()), 1)
    picked = groups[0].pick((n, len(groups)), like, spec)
    if settled:
        picked = torch.stack([settled.get(number, drawn) for number, drawn in enumerate(picked.unbind(1))], 1)
    for number, key in enumerate(keys):
        if number not in settled:
            kept[key] = Column(picked, number)
    return picked


@functools.lru_cache(maxsize=64)
def _make_numbers(numbers: tuple[int, ...], sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers, each so many times as its size; kept for later passes."""
    return torch.tensor(numbers).repeat_interleave(torch.tensor(sizes)).to(device)


def _by_element(copies: Tensor, group: PatchGroup, n: int, spec: Sampling) -> Tensor:
    """Draws ``[n, elements]`` from copies ``[K, elements]``, one choice for each element unless it is settled."""
    fixed = group.fixed_index(n, copies, spec)
    if fixed is not None:
        return copies[fixed]
    drawn = _fused_choice(copies, group, n, spec)
    if drawn is not None:
        return drawn
    return copies.gather(0, group.pick((n, copies.shape[1]), copies, spec))


def _fused_choice(copies: Tensor, group: PatchGroup, n: int, spec: Sampling) -> Tensor | None:
    """Draws ``[n, *shape]`` with a copy per element from ``[K, *shape]`` by a kernel, None where it does not serve."""
    few = copies.shape[1:].numel() < _FEWEST or (spec.streams is not None and len(spec.streams) != n)
    if few or group.logits is not None or not fused(copies) or not fits(copies):
        return None
    return chosen(copies, group.probs(copies), noise.keys(n, copies, spec))


@register_kl(PatchPosterior, NormalPrior)
def _patch(q: PatchPosterior, p: NormalPrior) -> Tensor:
    """sum_k p_k |M_k - mean|^2 / (2 s^2); the entropy of the mixing is the group's.

    With noise, D (sigma^2 / (2 s^2) - log(sigma / s) - 1 / 2) on top, which is exact where components do not overlap.
    """
    distance = q.stack()
    if isinstance(p.mean, Tensor) or p.mean:
        distance = distance - p.mean
    if q.group.equal:
        total = sum_of_squares(distance) / (2 * q.components * p.std**2)
    else:
        total = (q.group.probs(q.copies) * distance.square().flatten(1).sum(1)).sum() / (2 * p.std**2)
    if not q.sigma:
        return total
    std = torch.as_tensor(p.std, dtype=total.dtype, device=total.device)
    terms = q.sigma**2 / (2 * std**2) - 0.5 - math.log(q.sigma) + std.log()
    return total + terms.expand(q.shape).sum()
