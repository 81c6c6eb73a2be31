"""The baseline: what an observation is expected to gain, which the policy gradient takes from what it gained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._sampling import SeededRandom
from leanbayes.models import MLP

# Weight of the newest episodes in the running moments: about a hundred updates are remembered.
_NEWEST = 0.01


class Baseline:
    """A network that expects the rewards to go, in units of the standard deviation of those seen lately.

    It starts as their mean. The units make learning rates mean the same whatever the size of the rewards.

    Args:
        features: Features of an observation.
        hidden: Units of the hidden layers.
        lr: Learning rate of Adam.
        seed: Of the first weights.
    """

    def __init__(self, features: int, hidden: Sequence[int], lr: float, seed: int) -> None:
        with SeededRandom(seed):
            self._network = MLP(features, hidden, 1)
        nn.init.zeros_(self._network[-1].weight)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=lr, fused=True)
        self._moments = torch.zeros(2)
        self._updates = 0

    def advantages(self, observations: Tensor, gained: Tensor) -> Tensor:
        """What was gained beyond what was expected; then learns from it.

        Args:
            observations: ``[N, features]``.
            gained: Rewards to go ``[N]``.

        Returns:
            The differences ``[N]`` in standard deviations.
        """
        mean, std = self._scale(gained)
        wanted = (gained - mean) / std
        expected = self._network(observations).squeeze(1)
        self._optimizer.zero_grad()
        F.mse_loss(expected, wanted).backward()
        self._optimizer.step()
        return wanted - expected.detach()

    def _scale(self, gained: Tensor) -> tuple[Tensor, Tensor]:
        """Running mean and standard deviation, these rewards to go included."""
        self._updates += 1
        newest = max(_NEWEST, 1 / self._updates)
        self._moments = self._moments.lerp(torch.stack([gained.mean(), gained.square().mean()]), newest)
        mean, square = self._moments
        return mean, (square - mean.square()).clamp_min(1e-8).sqrt()
