"""Which components a model's mixtures have, and how the samples of a pass are spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._owners import derived, owners
from leanbayes._sampling import Assigned, Sampling
from leanbayes.groups import ComponentGroup


@dataclass(frozen=True, eq=False)
class MixturePart:
    """A part of a model with one index of its own, and the indices inside it, as of mixtures in an ensemble.

    Attributes:
        groups: The outermost first. A point is one component of each; the outermost one changes fastest.
    """

    groups: tuple[ComponentGroup, ...]

    @property
    def points(self) -> int:
        """Number of combinations."""
        count = 1
        for group in self.groups:  # a plain loop, which compilers follow
            count *= group.components
        return count

    @property
    def routes(self) -> bool:
        """Whether somebody has to look at the numbers."""
        return any([group.routes for group in self.groups])

    def split(self, points: Any) -> dict[int, Any]:
        """The component of each group, by id of its identity, of numbered points: a whole number or a tensor."""
        found: dict[int, Any] = {}
        last = self.groups[-1]
        for group in self.groups[:-1]:
            found[id(group.identity)] = points % group.components
            points = points // group.components
        return found | {id(last.identity): points}


def mixture_parts(model: nn.Module) -> list[MixturePart]:
    """The parts of a model that have a component index: one for all layers that were converted in one call."""
    return derived(model, "mixture parts", lambda: _mixture_parts(model))


def _mixture_parts(model: nn.Module) -> list[MixturePart]:
    found = {
        id(group.identity): MixturePart(tuple(_flat(group, inner)))
        for owner in owners(model, "component_parts")
        for group, inner in owner.component_parts()
    }
    return [part for part in found.values() if part.points > 1]


def _flat(group: ComponentGroup, inner: Iterable[Any]) -> list[ComponentGroup]:
    found = [group]
    for other, further in inner:
        found += _flat(other, further)
    return found


def draws_noise(model: nn.Module) -> bool:
    """Whether outputs differ between draws of one component."""
    return any(owner.draws_noise() for owner in owners(model, "draws_noise"))


def in_turn(parts: Sequence[MixturePart], n: int, start: int = 0) -> dict[int, Assigned]:
    """Components for n samples such that all combinations take turns, from the start-th on."""
    groups = [group for part in parts for group in part.groups]
    assigned: dict[int, Assigned] = {}
    stride = 1
    for group in groups:
        index = tuple((start + s) // stride % group.components for s in range(n))
        assigned[id(group.identity)] = Assigned(index, cycle=(start, stride))
        stride *= group.components
    return assigned


def balanced(parts: Sequence[MixturePart], n: int, like: Tensor, spec: Sampling) -> dict[int, Assigned]:
    """Components for n samples such that every point of every part comes equally often, in random combinations.

    Where n is no multiple of a part's points, chance says which of them come once more.
    """
    # One part takes turns: its numbers are known without looking, which spares waiting for a device.
    even = sorted([part for part in parts if n % part.points == 0], key=lambda part: not part.routes)[:1]
    assigned = in_turn(even, n)
    for part in [part for part in parts if part not in even]:
        index = part.split(noise.balanced(n, part.points, like, spec))
        assigned |= {group: Assigned(tuple(k.tolist()) if part.routes else k) for group, k in index.items()}
    return assigned


def every_component(parts: Sequence[MixturePart], samples: int, like: Tensor, spec: Sampling) -> Sampling:
    """A state with so many samples for each point of the largest part, spread evenly over every part."""
    n = samples * max(part.points for part in parts)
    return spec.replace(n=n, assigned=in_turn(parts, n) if len(parts) == 1 else balanced(parts, n, like, spec))


def per_row(parts: Sequence[MixturePart], rows: int, like: Tensor, spec: Sampling) -> dict[int, Assigned]:
    """One drawn point of every part for each row."""
    assigned: dict[int, Assigned] = {}
    for part in parts:
        probs = torch.full((part.points,), 1.0 / part.points, device=like.device)
        index = part.split(noise.categorical((rows,), probs, spec))
        assigned |= {group: Assigned(k, per_row=True) for group, k in index.items()}
    return assigned
