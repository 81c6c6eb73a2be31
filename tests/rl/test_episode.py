"""The policy gradient against an explicit loop over episodes and steps, and against a gradient in closed form."""

import numpy as np
import pytest
import torch

from leanbayes.rl.episode import Episode, log_probs, policy_loss
from tests.rl.small import small_policy

LENGTHS = (3, 1, 5)


def policy(kind):
    network = small_policy(kind)
    if kind == "noisy":  # noise of a size that shows
        with torch.no_grad():
            network.dense2.weight.posterior.raw_std.normal_(generator=torch.Generator().manual_seed(0))
    return network


def episodes():
    chance = np.random.default_rng(0)
    made = []
    for seed, length in enumerate(LENGTHS):
        episode = Episode(seed)
        for _ in range(length):
            episode.add(chance.normal(size=4), int(chance.integers(3)), float(chance.normal()))
        made.append(episode)
    return made


def drawn_weights(network, kind, episode):
    """Weight and bias of the second layer in an episode, from their distribution's formula."""
    generator = torch.Generator().manual_seed(episode.draw_seed)

    def noise(*shape):
        return torch.randn(1, *shape, generator=generator, dtype=torch.float64)[0]

    layer = network.dense2
    if kind == "plain":
        return layer.weight, layer.bias
    if kind == "variance":
        return layer.weight.posterior.signed_std.abs() * noise(5, 6), layer.bias
    parts = (layer.weight.posterior, layer.bias.posterior)
    return tuple(part.loc + torch.log1p(part.raw_std.exp()) * noise(*part.loc.shape) for part in parts)


def log_prob_by_hand(network, kind, episode, step):
    weight, bias = drawn_weights(network, kind, episode)
    x = torch.tensor(episode.observations[step])
    first, last = network.dense1, network.output
    hidden = torch.relu(weight @ torch.relu(first.weight @ x + first.bias) + bias)
    logits = last.weight @ hidden + last.bias
    return logits[episode.actions[step]] - logits.exp().sum().log()


@pytest.mark.parametrize("kind", ["plain", "noisy", "variance"])
def test_loss_and_gradient_are_those_of_a_loop(kind):
    network, played = policy(kind), episodes()
    advantages = [torch.linspace(-1, 2, len(episode), dtype=torch.float64) for episode in played]
    loss = policy_loss(network, played, advantages)
    by_hand = 0.0
    for episode, advantage in zip(played, advantages):
        for step in range(len(episode)):
            by_hand = by_hand - advantage[step] * log_prob_by_hand(network, kind, episode, step) / len(played)
    torch.testing.assert_close(loss, by_hand)
    parameters = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(by_hand, parameters)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["plain", "noisy", "variance"])
def test_an_episode_does_not_depend_on_those_beside_it(kind):
    network, played = policy(kind), episodes()
    together = log_probs(network, played)
    assert [len(one) for one in together] == list(LENGTHS)
    for episode, values in zip(played, together):
        torch.testing.assert_close(log_probs(network, [episode])[0], values)


def test_rewards_to_go_are_discounted_sums():
    rewards = np.random.default_rng(1).normal(size=7)
    sums = [sum(0.9 ** (k - t) * rewards[k] for k in range(t, 7)) for t in range(7)]
    torch.testing.assert_close(Episode(0, rewards=list(rewards)).rewards_to_go(0.9), torch.tensor(sums))


def test_the_gradient_estimates_that_of_the_expected_reward():
    """One observation, one step: J = sum_a pi(a) r(a) is known."""
    network = policy("plain")
    x, rewards = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64), torch.tensor([1.0, -2.0, 4.0])
    bias = network.output.bias
    probabilities = network(x[None])[0].softmax(-1)
    (exact,) = torch.autograd.grad(-(probabilities * rewards).sum(), bias)
    actions = torch.multinomial(probabilities.detach(), 1000, True, generator=torch.Generator().manual_seed(2)).tolist()
    played = [Episode(seed, [x.numpy()], [action], [float(rewards[action])]) for seed, action in enumerate(actions)]
    (estimate,) = torch.autograd.grad(
        policy_loss(network, played, [episode.rewards_to_go(1.0) for episode in played]), bias
    )
    # One episode's gradient is -r(a) (onehot(a) - pi); its covariance gives the standard error of the mean.
    each = -rewards[:, None] * (torch.eye(3) - probabilities.detach())
    variance = (probabilities.detach()[:, None] * each.square()).sum(0) - exact.square()
    assert ((estimate - exact).abs() < 4 * (variance / 1000).sqrt()).all()
