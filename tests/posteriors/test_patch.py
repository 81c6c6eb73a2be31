"""EMP and ECMP."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling, own_frame
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.patch import PatchGroup, PatchPosterior, _compared
from leanbayes.testing import PosteriorSuite, assert_probability_close

PROBS = (0.5, 0.3, 0.2)


def group(per_element=False, probs=None):
    made = PatchGroup(3, probs is not None, per_element)
    if probs is not None:
        with torch.no_grad():
            made.logits.copy_(torch.tensor(probs).log())
    return made


class PatchSuite(PosteriorSuite):
    per_element = False
    probs = None

    def make_posterior(self):
        torch.manual_seed(1)
        return PatchPosterior(torch.randn(3, 2), group(self.per_element, self.probs), 0.5)


class TestEMP(PatchSuite):
    pass


class TestEMPLearned(PatchSuite):
    probs = PROBS


class TestECMP(PatchSuite):
    per_element = True


class TestECMPLearned(PatchSuite):
    per_element = True
    probs = PROBS


@pytest.mark.parametrize("per_element", [False, True])
def test_copies_are_spread_around_the_weight_and_centred_on_it(per_element):
    value = torch.randn(40, 30)
    posterior = PatchPosterior(value, group(per_element), 0.1)
    torch.testing.assert_close(posterior.copies.mean(0), value)
    torch.testing.assert_close(posterior.mean(), value)
    # Centring takes one of the three degrees of freedom.
    assert (posterior.copies - value).std().item() == pytest.approx(0.1 * math.sqrt(2 / 3), rel=0.05)


@pytest.mark.parametrize("probs", [None, PROBS])
def test_emp_takes_one_copy_for_the_whole_weight(probs):
    posterior = PatchPosterior(torch.randn(3, 2), group(probs=probs), 0.5)
    draws = posterior.rsample(5000, Sampling(n=5000))
    which = (draws[:, None] - posterior.copies).abs().flatten(2).sum(2)  # [n, K]
    assert (which.min(1).values < 1e-5).all()
    for k, probability in enumerate(probs or (1 / 3,) * 3):
        assert_probability_close(which.argmin(1) == k, probability)


@pytest.mark.parametrize("probs", [None, PROBS])
def test_ecmp_takes_a_copy_for_each_element(probs):
    posterior = PatchPosterior(torch.randn(3, 2), group(True, probs), 0.5)
    draws = posterior.rsample(5000, Sampling(n=5000))
    distance, which = (draws[:, None] - posterior.copies).abs().min(1)  # [n, 3, 2]
    assert (distance < 1e-5).all()
    for k, probability in enumerate(probs or (1 / 3,) * 3):
        assert_probability_close(which == k, probability)
        both = (which[:, 0, 0] == k) & (which[:, 2, 1] == k)
        assert_probability_close(both, probability**2)


@pytest.mark.parametrize("shape", [(), (7,), (4, 3, 2)])
@pytest.mark.parametrize("per_element", [False, True])
def test_what_compilers_get_is_the_choice_and_its_gradient(shape, per_element):
    copies = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)
    index = torch.randint(3, (4, *shape) if per_element else (4,))
    expected = copies.gather(0, index) if per_element else copies[index]
    found = _compared(copies, index.view(4, *shape) if per_element else index.view(4, *(1,) * len(shape)))
    assert found.equal(expected)
    weights = torch.randn_like(expected)
    slopes = [torch.autograd.grad((one * weights).sum(), copies)[0] for one in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_weight_and_bias_of_a_layer_share_the_choice():
    layer = lb.nn.BayesianLayer(nn.Linear(2, 3), lb.EMP(components=3, init_std=1.0))
    weight, bias = layer.weight.posterior, layer.bias.posterior
    assert weight.group is bias.group is layer.mixing
    for _ in range(10):
        with own_frame():
            w, b = weight.rsample(1, Sampling()), bias.rsample(1, Sampling())
        chosen = [(draw - p.copies).abs().flatten(1).sum(1).argmin() for draw, p in ((w, weight), (b, bias))]
        assert chosen[0] == chosen[1]


def test_outside_an_objective_mixing_has_the_gradient_of_the_mean_of_the_copies():
    """Right where the loss is linear in the drawn parameter."""
    mixing = group(probs=PROBS)
    posterior = PatchPosterior(torch.zeros(1), mixing, 0.1)
    with torch.no_grad():
        posterior.copies.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
    posterior.rsample(7, Sampling(n=7)).mean().backward()
    # The gradient of E w = sum_k p_k M_k in the logits is p_k (M_k - E w).
    torch.testing.assert_close(mixing.logits.grad, torch.tensor(PROBS) * (torch.tensor([1.0, 0.0, -1.0]) - 0.3))


def test_entropy_and_probabilities_survive_extreme_logits():
    mixing = group(probs=PROBS)
    with torch.no_grad():
        mixing.logits.copy_(torch.tensor([400.0, 0.0, -400.0]))
    posterior = PatchPosterior(torch.zeros(2), mixing, 0.1)
    loss = posterior.rsample(4, Sampling(n=4)).sum() + sum(mixing.kl_terms("mean", None))
    loss.backward()
    assert sum(mixing.kl_terms("mean", None)).item() == 0
    assert mixing.logits.grad.isfinite().all()


@pytest.mark.parametrize("probs", [None, PROBS])
def test_emp_divergence_counts_one_entropy_for_weight_and_bias(probs):
    mixing = group(probs=probs)
    weight, bias = (PatchPosterior(torch.randn(shape), mixing, 0.5) for shape in ((3, 2), (3,)))
    p = torch.tensor(probs or (1 / 3,) * 3)
    prior = lb.Normal(0.0, 0.7)
    total = kl_divergence(weight, prior) + kl_divergence(bias, prior) + sum(mixing.kl_terms("mean", None))
    squares = torch.stack([weight.copies[k].square().sum() + bias.copies[k].square().sum() for k in range(3)])
    expected = (p * squares).sum() / (2 * 0.7**2) + (p * p.log()).sum()
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("probs", [None, PROBS])
def test_ecmp_divergence_counts_one_entropy_per_element(probs):
    mixing = group(True, probs)
    weight, bias = (PatchPosterior(torch.randn(shape), mixing, 0.5) for shape in ((3, 2), (3,)))
    p = torch.tensor(probs or (1 / 3,) * 3)
    prior = lb.Normal(0.0, 0.7)
    total = kl_divergence(weight, prior) + kl_divergence(bias, prior) + sum(mixing.kl_terms("mean", None))
    squares = torch.stack([weight.copies[k].square().sum() + bias.copies[k].square().sum() for k in range(3)])
    expected = (p * squares).sum() / (2 * 0.7**2) + 9 * (p * p.log()).sum()
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("method", [lb.EMP(components=3), lb.ECMP(components=3)], ids=["emp", "ecmp"])
def test_divergence_of_a_model_adds_up_its_layers(method):
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    net = lb.bayesianize(net, method)
    parts = [net[1], net[2]]
    expected = 0.0
    for layer in parts:
        copies = [layer.weight.posterior.copies, layer.bias.posterior.copies]
        squares = sum(c.square().sum().item() for c in copies)
        indices = sum(c[0].numel() for c in copies) if isinstance(method, lb.ECMP) else 1
        expected += squares / 3 / 2 - indices * math.log(3)
    assert lb.kl(net).item() == pytest.approx(expected, rel=1e-5)


def test_a_tied_layer_without_a_bias_has_no_entropy_of_its_own():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    net = lb.bayesianize(Tied(), lb.EMP(components=3), where=lb.types(nn.Linear))
    squares = net.first.weight.posterior.copies.square().sum().item()
    assert lb.kl(net).item() == pytest.approx(squares / 6 - math.log(3), rel=1e-5)


def test_loading_a_plain_weight_moves_all_copies():
    posterior = PatchPosterior(torch.zeros(4), group(probs=PROBS), 0.5)
    spread = posterior.copies - posterior.mean()
    value = torch.randn(4)
    posterior.set_point_(value)
    torch.testing.assert_close(posterior.mean(), value)
    torch.testing.assert_close(posterior.copies - posterior.mean(), spread)


def test_choice_per_example_or_per_batch():
    x = torch.ones(200, 3)
    for draw, distinct in (("batch", 1), ("example", 3)):
        layer = lb.nn.BayesianLayer(nn.Linear(3, 1), lb.EMP(components=3, init_std=1.0, draw=draw))
        assert layer(x).detach().round(decimals=4).unique().numel() == distinct


def test_autocast_leaves_copies_in_full_precision():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), lb.EMP(2, init_std=0.5), where=lb.named("0"))
    posterior = model[0].weight.posterior
    choice, spec = torch.tensor([0, 1]), Sampling(n=2)
    taken, mean = posterior.take(choice, spec), posterior.mean()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(posterior.take(choice, spec), taken) and torch.equal(posterior.mean(), mean)


@pytest.mark.parametrize("method", [lb.EMP, lb.ECMP])
def test_copies_start_centred_or_independently(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50))
    weight = net[0].weight.detach().clone()
    centred = lb.bayesianize(net, method(4, init_std=0.1), where=lb.types(nn.Linear, nn.BatchNorm1d))
    torch.testing.assert_close(centred[0].weight.posterior.copies.mean(0), weight, atol=1e-6, rtol=0)
    net = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50))
    weight = net[0].weight.detach().clone()
    free = lb.bayesianize(net, method(4, init_std=1e-6, init="independent"), where=lb.types(nn.Linear, nn.BatchNorm1d))
    copies = free[0].weight.posterior.copies.detach()
    for copy in copies:
        torch.testing.assert_close(copy.flatten().sort().values, weight.flatten().sort().values, atol=1e-4, rtol=0)
    correlations = torch.corrcoef(copies.flatten(1)) - torch.eye(4)
    assert correlations.abs().max() < 5 / 2000**0.5  # of 2,000 independent elements
    assert free[1].weight.posterior.copies.std() < 1e-4  # a norm starts at 1 everywhere


def test_other_starts_are_refused():
    with pytest.raises(ValueError, match="init"):
        lb.EMP(init="random")


@pytest.mark.parametrize("method", [lb.EMP(3, learn_mixing=True, init_std=0.5), lb.ECMP(3, learn_mixing=True)], ids=str)
def test_gradients_of_learned_mixing_by_example_add_up(method):
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), method)
    parameters, x = dict(model.named_parameters()), torch.randn(6, 4)

    def loss(values, rows):
        return torch.func.functional_call(model, values, (rows,)).square().sum()

    by_row = torch.func.grad(lambda values, row: loss(values, row.unsqueeze(0)))
    with lb.sampling(hold=True, seed=0):
        each = torch.func.vmap(by_row, (None, 0), randomness="same")(parameters, x)
    with lb.sampling(hold=True, seed=0):
        whole = torch.func.grad(loss)(parameters, x)
    for name, expected in whole.items():
        torch.testing.assert_close(each[name].sum(0), expected, rtol=1e-4, atol=1e-5)
    assert any(whole[name].any() for name in whole if name.endswith("logits"))
