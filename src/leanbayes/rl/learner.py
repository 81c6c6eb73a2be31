"""The policy gradient: what to do with the episodes that were played."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from leanbayes._checks import check_count, check_number, check_positive
from leanbayes.rl.baseline import Baseline
from leanbayes.rl.episode import Episode, policy_loss
from leanbayes.training.seeds import derive


@dataclass(frozen=True)
class PolicyGradient:
    """REINFORCE with rewards to go, a learned baseline and Adam.

    Attributes:
        episodes: Episodes to play.
        per_update: Episodes between two updates.
        lr: Learning rate of the policy.
        discount: Weight of a reward relative to one a step earlier.
        baseline: Units of the hidden layers of the baseline's network.
        baseline_lr: Its learning rate.
        max_steps: Steps after which an episode is cut off; None means the environment's own limit.
    """

    episodes: int = 1000
    per_update: int = 1
    lr: float = 3e-4
    discount: float = 0.99
    baseline: tuple[int, ...] = (64, 64)
    baseline_lr: float = 1e-3
    max_steps: int | None = None

    def __post_init__(self) -> None:
        check_count(self, episodes=self.episodes, per_update=self.per_update)
        check_positive(self, lr=self.lr, baseline_lr=self.baseline_lr)
        check_number(self, 0, 1, discount=self.discount)
        if self.max_steps is not None:
            check_count(self, max_steps=self.max_steps)


@dataclass
class Progress:
    """The course of a training.

    Attributes:
        returns: Of every episode, the sum of its rewards.
        lengths: Of every episode, the number of its steps.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Learner:
    """Improves a policy, in place, by the episodes that it plays.

    Args:
        policy: Logits ``[B, actions]`` from observations ``[B, features]``.
        features: Features of an observation.
        config: How to learn.
        seed: Decides all episodes.
    """

    def __init__(self, policy: nn.Sequential, features: int, config: PolicyGradient, seed: int) -> None:
        self.policy = policy
        self.progress = Progress()
        self._config = config
        self._seed = seed
        self._played: list[Episode] = []
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, fused=True)
        self._baseline = Baseline(features, config.baseline, config.baseline_lr, derive(seed, "baseline"))

    @property
    def is_done(self) -> bool:
        """Whether all episodes were played."""
        return len(self.progress.returns) == self._config.episodes

    def next_episode(self) -> Episode:
        """An episode to play with the policy as it is."""
        return Episode(derive(self._seed, "episode", len(self.progress.returns)))

    def learn(self, episode: Episode) -> None:
        """Take an episode that was played; updates the policy once there are enough of them."""
        self.progress.returns.append(sum(episode.rewards))
        self.progress.lengths.append(len(episode))
        self._played.append(episode)
        if len(self._played) == self._config.per_update or self.is_done:
            self._update(self._played)
            self._played = []

    def _update(self, episodes: list[Episode]) -> None:
        observations = torch.cat([episode.observed(torch.float32) for episode in episodes])
        gained = torch.cat([episode.rewards_to_go(self._config.discount) for episode in episodes])
        advantages = self._baseline.advantages(observations, gained)
        self._optimizer.zero_grad()
        policy_loss(self.policy, episodes, advantages.split([len(episode) for episode in episodes])).backward()
        self._optimizer.step()
