"""What happens in one episode, and the log-probabilities of what was done in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from leanbayes.rl.draws import one_draw_each
from leanbayes.training.seeds import derive


@dataclass
class Episode:
    """One episode of T steps, while it is played and afterwards.

    Attributes:
        seed: Decides the draw of the weights, the start and what is random about the actions.
        observations: T arrays ``[features]``.
        actions: T indices.
        rewards: T numbers.
    """

    seed: int
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def draw_seed(self) -> int:
        """The seed of its weights, see `one_draw_each`."""
        return derive(self.seed, "weights")

    def add(self, observation: np.ndarray, action: int, reward: float) -> None:
        """Note a step."""
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)

    def observed(self, dtype: torch.dtype) -> Tensor:
        """The observations ``[T, features]``."""
        return torch.as_tensor(np.stack(self.observations), dtype=dtype)

    def rewards_to_go(self, discount: float) -> Tensor:
        """What each step still has to gain, ``G_t = sum_k discount^k r_(t+k)``: ``[T]``.

        Example:
            >>> Episode(seed=0, rewards=[1.0, 0.0, 4.0]).rewards_to_go(discount=0.5)
            tensor([2., 2., 4.])
        """
        sums = list(accumulate(reversed(self.rewards), lambda later, reward: reward + discount * later))
        return torch.tensor(sums[::-1])


def log_probs(policy: nn.Module, episodes: Sequence[Episode]) -> list[Tensor]:
    """Log-probabilities ``[T]`` of the actions of each episode under the draw of the weights that chose them.

    One forward pass for all episodes, differentiable in the parameters of the weights' distribution.
    """
    dtype = next(policy.parameters()).dtype
    # Folded samples have the same number of rows: shorter episodes are padded with observations of zeros.
    observations = pad_sequence([episode.observed(dtype) for episode in episodes], batch_first=True)  # [E, T, features]
    with one_draw_each([episode.draw_seed for episode in episodes]):
        logits = policy(observations.flatten(0, 1))
    each = logits.log_softmax(-1).unflatten(0, observations.shape[:2])  # [E, T, actions]
    return [rows[range(len(episode)), episode.actions] for rows, episode in zip(each, episodes)]


def policy_loss(policy: nn.Module, episodes: Sequence[Episode], advantages: Sequence[Tensor]) -> Tensor:
    """``-(1/E) sum_e sum_t A_et log pi(a_et | s_et, w_e)`` with the weights w_e that episode e was played with.

    Its gradient, taken through the reparameterised draw w_e, estimates that of the expected return (Williams, 1992;
    Sutton et al., 2000).

    Args:
        policy: Logits ``[B, actions]`` from observations ``[B, features]``.
        episodes: E episodes that it played.
        advantages: Rewards to go less a baseline, ``[T]`` for each episode.
    """
    terms = [chosen @ advantage.to(chosen.dtype) for chosen, advantage in zip(log_probs(policy, episodes), advantages)]
    return -torch.stack(terms).mean()
