"""Training policies side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from leanbayes.rl.actors import Actors, check_alike, checked_policy
from leanbayes.rl.environments import Environments
from leanbayes.rl.learner import Learner, PolicyGradient, Progress
from leanbayes.training.seeds import derive


def train(
    policies: Sequence[nn.Module],
    environment: str,
    config: PolicyGradient | None = None,
    *,
    seeds: Sequence[int] | None = None,
) -> list[Progress]:
    """Train policies in place, independent of each other, each in its own copy of the environment.

    They are trained side by side so that one forward pass chooses the actions of all. Every episode is played with one
    draw of its policy's weights, and its gradient is taken through that draw. There is no KL term: the noise is there
    to explore.

    Args:
        policies: Networks of the same dense layers, such as `make_policy` builds, in the memory of the CPU.
        environment: Its name in gymnasium, such as ``"CartPole-v1"``; its action space must be Discrete.
        config: How to learn.
        seeds: One for each policy; None means 0, 1, ...; a policy's episodes are a function of its first weights and
            its seed.

    Returns:
        Returns and lengths of the episodes of each policy.

    Example:
        >>> from leanbayes import rl
        >>> policies = [rl.make_policy("noisy", features=4, actions=2, hidden=(8, 8), seed=seed) for seed in range(2)]
        >>> progress = rl.train(policies, "CartPole-v1", rl.PolicyGradient(episodes=3))
        >>> [len(one.returns) for one in progress]
        [3, 3]
    """
    config = config or PolicyGradient()
    seeds = range(len(policies)) if seeds is None else seeds
    if not policies or len(policies) != len(seeds):
        raise ValueError(f"train needs one seed for each policy, got {len(policies)} policies and {len(seeds)} seeds")
    environments = Environments(environment, len(policies), config.max_steps)
    try:
        fitting = [checked_policy(policy, environments.features, environments.actions) for policy in policies]
        check_alike(fitting)
        learners = [Learner(policy, environments.features, config, seed) for policy, seed in zip(fitting, seeds)]
        _play(learners, environments)
    finally:
        environments.close()
    return [learner.progress for learner in learners]


class _Slot:
    """Where a learner's episodes are played, one after the other."""

    def __init__(self, index: int, learner: Learner, environments: Environments, actors: Actors) -> None:
        self.learner = learner
        self._index = index
        self._environments = environments
        self._actors = actors
        self.begin()

    def begin(self) -> None:
        """Begin an episode: new weights, a new start."""
        self._episode = self.learner.next_episode()
        self._actors.draw_(self._index, self.learner.policy, self._episode.draw_seed)
        self._chance = np.random.default_rng(derive(self._episode.seed, "actions"))
        self.observation = self._environments.reset(self._index, derive(self._episode.seed, "start"))

    def chance(self) -> float:
        """A number from 0 to 1 that decides the next action."""
        return self._chance.random()

    def act(self, action: int) -> None:
        """Make a step; at the end of an episode learn from it, and begin another one."""
        before = self.observation
        self.observation, reward, over = self._environments.step(self._index, action)
        self._episode.add(before, action, reward)
        if over:
            self.learner.learn(self._episode)
            if not self.learner.is_done:
                self.begin()


def _play(learners: Sequence[Learner], environments: Environments) -> None:
    actors = Actors(learners[0].policy, len(learners))
    slots = [_Slot(index, learner, environments, actors) for index, learner in enumerate(learners)]
    while running := [index for index, slot in enumerate(slots) if not slot.learner.is_done]:
        observations = np.stack([slot.observation for slot in slots])
        edges = actors(torch.as_tensor(observations, dtype=actors.dtype)).softmax(-1).cumsum(-1).numpy()
        chances = np.array([slot.chance() for slot in slots])
        # The last edge is 1 but for rounding: the last action takes what is beyond the others.
        actions = (chances[:, None] >= edges[:, :-1]).sum(1).tolist()
        for index in running:
            slots[index].act(actions[index])
