"""The policies that are compared: one network, whose second hidden layer is plain or noisy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from leanbayes.convert import bayesianize, named
from leanbayes.models import MLP
from leanbayes.posteriors import MeanField, VarianceLayer
from leanbayes.posteriors._method import Method

# The noise of Fortunato et al. (2017) with independent elements: weights and biases, standard deviations that are
# learned and start at 0.017.
POLICIES: dict[str, Method | None] = {
    "plain": None,
    "noisy": MeanField(init_std=0.017, bias="same"),
    "variance": VarianceLayer(),
}


def make_policy(
    kind: str | Method, features: int, actions: int, *, hidden: Sequence[int] = (256, 256), seed: int = 0
) -> nn.Module:
    """A network from observations ``[B, features]`` to the logits of the actions ``[B, actions]``.

    Args:
        kind: "plain"; "noisy", whose second hidden layer has Gaussian weights with learned means and standard
            deviations; "variance", whose second hidden layer has zero-mean weights; or a method for that layer.
        features: Features of an observation.
        actions: Number of actions.
        hidden: Units of the hidden layers, at least two.
        seed: Of the initial weights, which are the same for all kinds.

    Example:
        >>> policy = make_policy("variance", features=4, actions=2)
        >>> policy(torch.zeros(3, 4)).shape
        torch.Size([3, 2])
    """
    if isinstance(kind, str) and kind not in POLICIES:
        raise ValueError(f"there is no policy {kind!r}; the policies are {', '.join(POLICIES)}")
    if len(hidden) < 2:
        raise ValueError(f"the second hidden layer is the noisy one; make_policy got hidden={tuple(hidden)!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP(features, hidden, actions)
    method = POLICIES[kind] if isinstance(kind, str) else kind
    return network if method is None else bayesianize(network, method, where=named("dense2"))
