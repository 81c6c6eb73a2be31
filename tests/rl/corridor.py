"""A small environment: always the same observation, so that outputs of a policy differ by its weights alone."""

import gymnasium
import numpy as np

NAME = "leanbayes/Corridor-v0"


class Corridor(gymnasium.Env):
    """Episodes of 3 to 6 steps, decided by the seed; action k of three gains k."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=10)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 7))
        return self.observation, {}

    def step(self, action):
        assert self.action_space.contains(np.int64(action))
        self.left -= 1
        return self.observation, float(action - 10), self.left == 0, False, {}

    @property
    def observation(self):
        return np.array([[0.5, -0.5], [1.0, 0.25]], np.float32)


def register():
    if NAME not in gymnasium.registry:
        gymnasium.register(NAME, Corridor)
