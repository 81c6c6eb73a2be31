"""K points of one parameter, of which the model's component index chooses one; what per-component norms are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling
from leanbayes.groups import ComponentGroup
from leanbayes.posteriors._base import Posterior


class ComponentPoints(Posterior):
    """A point ``[*shape]`` for each of the K components of a model; no KL.

    Args:
        copies: The points ``[K, *shape]``.
        group: Owner of the component index.
    """

    outside_kl = ("copies",)
    shared_index = True

    def __init__(self, copies: Tensor, group: ComponentGroup) -> None:
        super().__init__()
        self.copies = nn.Parameter(copies.detach().clone())
        self.components = group.components
        self._group = (group,)

    @property
    def group(self) -> ComponentGroup:
        """Owner of the component index."""
        return self._group[0]

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.copies.shape[1:]

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self.copies.index_select(0, self.group.index(n, self.copies, spec))

    def rsample_rows(self, index: Tensor, spec: Sampling) -> Tensor:
        """The points of the components ``index`` ``[rows]``."""
        return self.copies.index_select(0, index)

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self.copies[0 if component is None else component]

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`; each draw less the point of its own component is 0."""
        return torch.zeros_like(self.rsample(n, spec))

    @torch.no_grad()
    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        self.copies.copy_(value.expand_as(self.copies))

    def component_group(self) -> ComponentGroup:
        """See `Posterior`."""
        return self.group

    def deterministic(self) -> bool:
        """See `Posterior`."""
        return True

    def silence_(self) -> None:
        """See `Posterior`; points have no noise."""
