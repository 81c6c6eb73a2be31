"""Training: one draw per episode, policies that do not disturb each other, and something learned."""

import statistics

import pytest
import torch
from torch import nn

from leanbayes.rl import PolicyGradient, _train, make_policy, train
from leanbayes.rl.episode import log_probs
from tests.rl import corridor

KINDS = ("plain", "noisy", "variance")
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def registered_corridor():
    corridor.register()


def policies(kind, seeds, hidden=(16, 16), features=4, actions=3):
    return [make_policy(kind, features, actions, hidden=hidden, seed=seed) for seed in seeds]


class RecordedActors(_train.Actors):
    """Actors that note what they said, ``[count, actions]`` per call."""

    def __call__(self, x):
        output = super().__call__(x)
        self.said.append(output.clone())
        return output


def logits_of_episodes(kind, monkeypatch, lr):
    """For each of two policies with the same weights, the logits ``[T, actions]`` of each episode."""
    monkeypatch.setattr(RecordedActors, "said", [], raising=False)
    monkeypatch.setattr(_train, "Actors", RecordedActors)
    progress = train(policies(kind, [0, 0]), corridor.NAME, PolicyGradient(episodes=4, lr=lr), seeds=[1, 2])
    said = torch.stack(RecordedActors.said, 1)  # [policies, steps, actions]
    # The policy that is done first is still asked, and not heeded.
    return [rows[: sum(one.lengths)].split(one.lengths) for rows, one in zip(said, progress)]


@each_kind
def test_an_episode_has_one_draw(kind, monkeypatch):
    for episodes in logits_of_episodes(kind, monkeypatch, lr=1e-2):
        for logits in episodes:
            assert len(logits) >= 3 and torch.equal(logits, logits[:1].expand_as(logits))


@pytest.mark.parametrize("kind", ["noisy", "variance"])
def test_every_episode_and_environment_has_its_own_draw(kind, monkeypatch):
    # The learning rate moves the weights by less than the noise: what differs, differs by the draw.
    first, second = logits_of_episodes(kind, monkeypatch, lr=1e-8)
    draws = torch.stack([logits[0] for logits in (*first, *second)])
    apart = torch.cdist(draws, draws) + torch.eye(len(draws))
    assert apart.min() > 1e-4


@each_kind
def test_the_weights_that_acted_are_those_that_learn(kind, monkeypatch):
    """Probabilities with which actions were chosen, and those whose gradient is taken."""
    monkeypatch.setattr(RecordedActors, "said", [], raising=False)
    monkeypatch.setattr(_train, "Actors", RecordedActors)
    learned = []

    class RecordedLearner(_train.Learner):
        def learn(self, episode):
            learned.append((episode, log_probs(self.policy, [episode])[0].detach()))
            super().learn(episode)

    monkeypatch.setattr(_train, "Learner", RecordedLearner)
    train(policies(kind, [0], actions=2), "CartPole-v1", PolicyGradient(episodes=3, lr=1e-2))
    acted = torch.cat(RecordedActors.said).log_softmax(-1)  # [steps, actions]
    actions = torch.tensor([action for episode, _ in learned for action in episode.actions])
    torch.testing.assert_close(acted.gather(1, actions[:, None])[:, 0], torch.cat([values for _, values in learned]))


def test_a_plain_policy_has_no_draws(monkeypatch):
    first, second = logits_of_episodes("plain", monkeypatch, lr=1e-8)
    draws = torch.stack([logits[0] for logits in (*first, *second)])
    torch.testing.assert_close(draws, draws[:1].expand_as(draws), rtol=1e-4, atol=1e-5)


@each_kind
def test_side_by_side_is_one_by_one(kind):
    config, seeds = PolicyGradient(episodes=5, lr=1e-2, per_update=2), [3, 4, 5]
    together = [policy.double() for policy in policies(kind, seeds, actions=2)]
    progress = train(together, "CartPole-v1", config, seeds=seeds)
    for index, seed in enumerate(seeds):
        (alone,) = (policy.double() for policy in policies(kind, [seed], actions=2))
        (seen,) = train([alone], "CartPole-v1", config, seeds=[seed])
        assert seen == progress[index]
        for ours, theirs in zip(alone.parameters(), together[index].parameters()):
            torch.testing.assert_close(ours, theirs)


@each_kind
def test_a_seed_gives_the_same_training(kind):
    config, state = PolicyGradient(episodes=4), torch.get_rng_state()
    first, second, third = (policies(kind, [0], actions=2) for _ in range(3))
    seen = train(first, "CartPole-v1", config, seeds=[7])
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert train(second, "CartPole-v1", config, seeds=[7]) == seen
    assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters()))
    assert train(third, "CartPole-v1", config, seeds=[8]) != seen


@each_kind
def test_all_parameters_are_trained(kind):
    (policy,) = policies(kind, [0])
    before = [parameter.clone() for parameter in policy.parameters()]
    train([policy], corridor.NAME, PolicyGradient(episodes=2))
    assert all(not torch.equal(a, b) for a, b in zip(before, policy.parameters()))


@each_kind
def test_a_better_action_is_found(kind):
    """Action 2 of the corridor gains 2 per step, a random one 1; what follows does not depend on it."""
    config = PolicyGradient(episodes=100, lr=3e-3, discount=0.0)
    for one in train(policies(kind, range(2)), corridor.NAME, config):
        assert sum(one.returns[-20:]) / sum(one.lengths[-20:]) > 1.7


@pytest.mark.slow
@each_kind
def test_cartpole_is_learned(kind):
    """A random policy stands for some 22 steps."""
    config = PolicyGradient(episodes=300, lr=3e-3, max_steps=200)
    progress = train(policies(kind, range(3), hidden=(64, 64), actions=2), "CartPole-v1", config)
    assert statistics.fmean(sum(one.returns[-50:]) / 50 for one in progress) > 40


def test_episodes_are_cut_off():
    (progress,) = train(policies("plain", [0], actions=2), "CartPole-v1", PolicyGradient(episodes=3, max_steps=4))
    assert progress.lengths == [4, 4, 4] and progress.returns == [4.0, 4.0, 4.0]


def test_other_policies_are_refused():
    with pytest.raises(TypeError, match="not Linear"):
        train([nn.Linear(4, 2)], "CartPole-v1")


def test_seeds_and_policies_must_agree():
    with pytest.raises(ValueError, match="got 2 policies and 1 seeds"):
        train(policies("plain", [0, 1]), "CartPole-v1", seeds=[0])


@pytest.mark.parametrize(
    "other",
    [
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)),
        nn.Sequential(nn.Linear(4, 16, bias=False), nn.Tanh(), nn.Linear(16, 2)),
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).double(),
    ],
    ids=["activation", "bias", "width", "precision"],
)
def test_policies_side_by_side_have_the_same_layers(other):
    first = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    with pytest.raises(ValueError, match="policy 1 differs from policy 0"):
        train([first, other], "CartPole-v1")
    with pytest.raises(ValueError, match="given twice"):
        train([first, first], "CartPole-v1")
