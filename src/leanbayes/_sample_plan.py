"""Which samples a prediction is made of: how many, and of which components."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import nn

from leanbayes._auto_samples import MOST, balanced_stages, stage_counts, whole_rounds
from leanbayes._components import MixturePart, draws_noise, in_turn, mixture_parts
from leanbayes._owners import owners
from leanbayes._sampling import Assigned, Sampling
from leanbayes.posteriors.patch import PatchGroup


class SamplePlan:
    """How many samples there are, and which components they use.

    Args:
        stages: Total numbers of samples after which to look whether there are enough; the last is the most.
        points: Number of combinations of components that take turns, 1 where there is nothing to go through.
        components: ``components(start, n)`` gives those of n samples from the start-th on.
    """

    def __init__(
        self,
        stages: tuple[int, ...],
        points: int = 1,
        components: Callable[[int, int], dict[int, Assigned]] | None = None,
    ) -> None:
        self.stages = stages
        self.points = points
        self.components = components


def plan_samples(model: nn.Module, samples: int | Literal["auto"], state: Sampling) -> SamplePlan:
    """Which samples a prediction is made of.

    The points of nested mixtures are always all gone through. Of parts that were converted one by one, all
    combinations are where they are no more than the samples; else every part's points come equally often.
    """
    if state.mean is True:
        return SamplePlan((1,))
    random = draws_noise(model)
    parts = mixture_parts(model)
    spread = isinstance(state.component, str) and state.component in ("random", "all") and not state.assigned
    if not parts and spread and state.component == "all":
        return _layers_in_turn(model, samples)
    if not parts or not spread:
        return SamplePlan(_stages(samples) if random else (1,))
    points = math.prod(part.points for part in parts)
    # Points cost one sample each, so that "auto" goes through all it can; of draws it may need a few only.
    enough = samples if samples != "auto" else stage_counts()[0] if random else MOST
    if len(parts) == 1 or points <= enough:
        stages = _stages(samples, points) if random else (points,)
        return SamplePlan(stages, points, lambda start, n: in_turn(parts, n, start % points))
    return _balanced_plan(parts, samples, state)


def _stages(samples: int | Literal["auto"], whole: int = 1) -> tuple[int, ...]:
    """Total numbers of samples in whole rounds: the one that was given, or those of "auto"."""
    return stage_counts(whole) if samples == "auto" else (math.ceil(samples / whole) * whole,)


def _layers_in_turn(model: nn.Module, samples: int | Literal["auto"]) -> SamplePlan:
    """Samples in which the components of every patched layer take turns, those of all layers in step."""
    groups: list[PatchGroup] = owners(model, "choose")
    points = math.lcm(*(group.components for group in groups))

    def some(start: int, n: int) -> dict[int, Assigned]:
        index = {group: tuple((start + s) % group.components for s in range(n)) for group in groups}
        return {id(group.identity): Assigned(k, cycle=(start, 1)) for group, k in index.items()}

    return SamplePlan(_stages(samples, points) if draws_noise(model) else (1,), points, some if groups else None)


def _balanced_plan(parts: list[MixturePart], samples: int | Literal["auto"], state: Sampling) -> SamplePlan:
    """Samples in which every part's points come equally often, in random combinations."""
    if samples == "auto":
        stages = stage_counts(whole_rounds(parts))
    else:
        stages = (max(samples, *(part.points for part in parts)),)
    index = balanced_stages(parts, stages, state)

    def some(start: int, n: int) -> dict[int, Assigned]:
        # The last pass of a compiled model may be longer than what is left.
        return {group: Assigned(tuple(k[(start + s) % len(k)] for s in range(n))) for group, k in index.items()}

    return SamplePlan(stages, 1, some)
