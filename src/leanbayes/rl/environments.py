"""Environments of gymnasium with features to observe and a choice among actions."""

from __future__ import annotations

from typing import Any

import numpy as np


class Environments:
    """Several copies of one environment, which episodes are played in side by side.

    Args:
        name: Its name in gymnasium, such as ``"CartPole-v1"``.
        count: Number of copies.
        max_steps: Steps after which an episode is cut off; None means the environment's own limit.

    Attributes:
        features: Number of features of an observation, all its dimensions together.
        actions: Number of actions.

    Raises:
        ModuleNotFoundError: If gymnasium is not installed.
        ValueError: If the environment does not exist, or has other observations or actions.
    """

    def __init__(self, name: str, count: int = 1, max_steps: int | None = None) -> None:
        gymnasium = _gymnasium()
        self.name = name
        try:
            self._copies = [
                gymnasium.make(name, max_episode_steps=max_steps, disable_env_checker=True) for _ in range(count)
            ]
        except gymnasium.error.UnregisteredEnv as error:
            raise ValueError(f"gymnasium has no environment {name!r}: {error}") from None
        observed, acted = self._copies[0].observation_space, self._copies[0].action_space
        if not isinstance(acted, gymnasium.spaces.Discrete):
            raise ValueError(
                f"{name} has the action space {acted}; policies here choose among actions, so take an environment "
                "with a Discrete one"
            )
        if not isinstance(observed, gymnasium.spaces.Box):
            raise ValueError(
                f"{name} has the observation space {observed}; policies here see features, so take an environment "
                "with a Box one"
            )
        self.features = int(np.prod(observed.shape))
        self.actions = int(acted.n)
        self._first_action = int(acted.start)

    def __len__(self) -> int:
        return len(self._copies)

    def reset(self, index: int, seed: int) -> np.ndarray:
        """Begin an episode in one copy; returns its first observation ``[features]``."""
        observation, _ = self._copies[index].reset(seed=seed)
        return observation.flatten()

    def step(self, index: int, action: int) -> tuple[np.ndarray, float, bool]:
        """Act in one copy; returns the next observation ``[features]``, the reward, and whether the episode is over."""
        observation, reward, terminated, truncated, _ = self._copies[index].step(self._first_action + action)
        # A copy: some environments write the next observation into the same array.
        return observation.flatten(), float(reward), bool(terminated or truncated)

    def close(self) -> None:
        """Free what the copies hold."""
        for copy in self._copies:
            copy.close()


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise ModuleNotFoundError(
            "reinforcement learning needs gymnasium; install it with: pip install 'leanbayes[rl]'", name="gymnasium"
        ) from None
    return gymnasium
