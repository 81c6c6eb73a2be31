"""What environments must be like, and what is said where they are not."""

import sys

import numpy as np
import pytest

from leanbayes.rl.environments import Environments
from tests.rl import corridor


def test_observations_are_flat_and_actions_start_where_the_environment_says():
    corridor.register()
    environments = Environments(corridor.NAME, 2)
    assert (len(environments), environments.features, environments.actions) == (2, 4, 3)
    np.testing.assert_array_equal(environments.reset(1, seed=0), [0.5, -0.5, 1.0, 0.25])
    observation, reward, over = environments.step(1, 2)
    assert observation.shape == (4,) and reward == 2.0 and over is False
    environments.close()


def test_copies_are_independent():
    environments = Environments("CartPole-v1", 2)
    np.testing.assert_array_equal(environments.reset(0, seed=3), environments.reset(1, seed=3))
    left, right = environments.step(0, 0)[0], environments.step(1, 1)[0]
    assert left[1] < 0 < right[1]


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match=r"^Pendulum-v1 has the action space Box.*take an environment with a Discrete"):
        Environments("Pendulum-v1")


def test_observations_without_features_are_refused():
    with pytest.raises(ValueError, match=r"^CliffWalking-v1 has the observation space Discrete.*with a Box one$"):
        Environments("CliffWalking-v1")


def test_an_unknown_environment_is_named():
    with pytest.raises(ValueError, match=r"^gymnasium has no environment 'CartPool-v1'"):
        Environments("CartPool-v1")


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'leanbayes\[rl\]'$"):
        Environments("CartPole-v1")
