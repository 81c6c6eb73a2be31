"""Mean-field whose standard deviations stay below a bound in training, as in the k-tied paper's ResNet-18."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.groups import ComponentGroup
from leanbayes.noise import full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior, inverse_softplus
from leanbayes.posteriors.mean_field import MeanFieldPosterior


class BoundedPosterior(MeanFieldPosterior):
    """N(loc, std^2) with ``std = bound * sigmoid(raw_std)``, which is ``bound * exp(raw_std)`` far below the bound.

    Args:
        value: The mean.
        init_std: Initial standard deviation.
        bound: What standard deviations stay below.
        narrow: See `GaussianPosterior`.
    """

    def __init__(self, value: Tensor, init_std: float, bound: float, narrow: bool = False) -> None:
        super().__init__(value, init_std, narrow)
        self.bound = bound
        nn.init.constant_(self.raw_std, math.log(init_std / (bound - init_std)))

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        return self.bound * full_precision(self.raw_std).sigmoid()


@dataclass(frozen=True)
class Bounded(lb.MeanField):
    """Mean-field with standard deviations below a bound.

    Args:
        bound: What they stay below.
    """

    bound: float = 1.0

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        return BoundedPosterior(value, self.init_std, self.bound, narrow=op is not None and not op.index_input)


@torch.no_grad()
def unbounded(model: nn.Module, plain: nn.Module) -> nn.Module:
    """Give a mean-field network the distribution of a bounded one, so that it can be analysed as any other.

    Args:
        model: The bounded one.
        plain: The same network, converted by `lb.MeanField`; it is changed and returned.
    """
    state = model.state_dict()
    for name, part in model.named_modules():
        if isinstance(part, BoundedPosterior):
            state[f"{name}.raw_std"] = inverse_softplus(part.std())
    plain.load_state_dict(state)
    return plain
