"""The baseline and the update."""

import numpy as np
import pytest
import torch

from leanbayes.rl import PolicyGradient, make_policy
from leanbayes.rl.baseline import Baseline
from leanbayes.rl.episode import policy_loss
from leanbayes.rl.learner import Learner


def test_the_baseline_starts_as_the_mean():
    gained = torch.tensor([1.0, 5.0, 3.0, 7.0])
    advantages = Baseline(2, (8,), 1e-3, seed=0).advantages(torch.randn(4, 2), gained)
    torch.testing.assert_close(advantages, (gained - gained.mean()) / gained.std(correction=0))


def test_the_baseline_learns_what_is_gained():
    generator = torch.Generator().manual_seed(1)
    baseline = Baseline(2, (32,), 1e-2, seed=0)
    for _ in range(300):
        observations = torch.randn(64, 2, generator=generator)
        advantages = baseline.advantages(observations, 50 + 20 * observations[:, 0].abs())
    # In units of the gains' deviation, which a mean alone would leave at 1.
    assert advantages.square().mean() < 0.01


def test_equal_gains_are_no_surprise():
    advantages = Baseline(2, (8,), 1e-3, seed=0).advantages(torch.randn(3, 2), torch.full((3,), -4.0))
    assert torch.equal(advantages, torch.zeros(3))


def play(learner, chance, steps=3):
    episode = learner.next_episode()
    for _ in range(steps):
        episode.add(chance.normal(size=4), int(chance.integers(2)), float(chance.normal()))
    return episode


def test_an_update_is_adam_on_the_policy_loss():
    ours, theirs = (make_policy("variance", 4, 2, hidden=(6, 5)) for _ in range(2))
    learner = Learner(ours, 4, PolicyGradient(episodes=2, per_update=2, lr=1e-2, discount=0.9), seed=0)
    chance = np.random.default_rng(0)
    first = play(learner, chance, 3)
    learner.learn(first)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))
    second = play(learner, chance, 5)
    learner.learn(second)
    assert learner.is_done and first.seed != second.seed
    gained = torch.cat([episode.rewards_to_go(0.9) for episode in (first, second)])
    advantages = (gained - gained.mean()) / gained.std(correction=0)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    policy_loss(theirs, [first, second], advantages.split([3, 5])).backward()
    optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b)


def test_progress_is_noted():
    learner = Learner(make_policy("plain", 4, 2, hidden=(4, 4)), 4, PolicyGradient(episodes=2), seed=0)
    episode = play(learner, np.random.default_rng(0))
    learner.learn(episode)
    assert learner.progress.returns == [sum(episode.rewards)] and learner.progress.lengths == [3]
    assert not learner.is_done


@pytest.mark.parametrize(
    "wrong", [{"episodes": 0}, {"lr": 0.0}, {"discount": 1.5}, {"max_steps": 0}, {"per_update": 0}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=rf"^PolicyGradient\({next(iter(wrong))}=...\) takes"):
        PolicyGradient(**wrong)
