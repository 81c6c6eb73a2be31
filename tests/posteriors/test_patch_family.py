"""The family of EMP's equation 1: dropout, DropConnect, explicit ensembles, EMP and ECMP as settings of `Patch`."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.ops import op_for
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.patch import PatchGroup, PatchPosterior
from leanbayes.testing import PosteriorSuite, assert_mean_close, assert_probability_close, assert_variance_close

MIXING = (0.5, 0.3, 0.2)


def posterior(per_element=False, mixing=None, shape=(3, 2), **options):
    torch.manual_seed(1)
    return PatchPosterior(torch.randn(shape), PatchGroup(3, False, per_element, mixing), 0.5, **options)


class TestNoise(PosteriorSuite):
    def make_posterior(self):
        return posterior(sigma=0.2)


class TestZero(PosteriorSuite):
    def make_posterior(self):
        return posterior(True, zero=True)


class TestZeroOfALayer(PosteriorSuite):
    def make_posterior(self):
        return posterior(zero=True, mixing=MIXING)


class TestByFeature(PosteriorSuite):
    def make_posterior(self):
        return posterior(True, MIXING, inputs=op_for(nn.Linear(2, 3)))


@pytest.mark.parametrize("per_element", [False, True])
def test_given_probabilities_are_those_of_the_components(per_element):
    q = posterior(per_element, MIXING)
    drawn = q.rsample(20_000, Sampling(n=20_000))
    for number, probability in enumerate(MIXING):
        hits = (drawn - q.copies[number]).abs() < 1e-6
        assert_probability_close(hits if per_element else hits.all(-1).all(-1), probability)
    torch.testing.assert_close(q.mean(), sum(p * copy for p, copy in zip(MIXING, q.copies)))


def test_noise_adds_its_variance():
    q = posterior(sigma=0.3)
    drawn = q.rsample(50_000, Sampling(n=50_000)).detach()
    assert_mean_close(drawn, q.mean().detach())
    assert_variance_close(drawn, q.copies.detach().var(0, correction=0) + 0.09)


def test_the_mean_is_the_plain_value_also_with_zeros():
    for options in ({}, {"zero": True}, {"zero": True, "mixing": MIXING}, {"mixing": MIXING}):
        torch.manual_seed(0)
        value = torch.randn(4, 2)
        q = PatchPosterior(value, PatchGroup(3, False, True, options.pop("mixing", None)), 0.5, **options)
        torch.testing.assert_close(q.mean(), value)
        q.set_point_(value + 1)
        torch.testing.assert_close(q.mean(), value + 1)


def test_the_divergence_is_that_of_monte_carlo_where_components_do_not_overlap():
    torch.manual_seed(0)
    group = PatchGroup(3, False, False, MIXING)
    q = PatchPosterior(torch.randn(40).double(), group, 1.0, True, sigma=0.05)
    prior = lb.Normal(0.0, 2.0)
    closed = float(kl_divergence(q, prior).detach()) + sum(map(float, group.kl_terms("mean", None)))
    components = Independent(Normal(q.copies.detach(), torch.full_like(q.copies, 0.05)), 1)
    mixture = MixtureSameFamily(Categorical(torch.tensor(MIXING).double()), components)
    points = mixture.sample((100_000,))
    values = mixture.log_prob(points) - Normal(0.0, 2.0).log_prob(points).sum(-1)
    assert closed == pytest.approx(float(values.mean()), abs=5 * float(values.std()) / 100_000**0.5)


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("assign", "method"),
    [("element", lb.DropConnect(0.3)), ("input", lb.MCDropout(0.3, estimator="weight"))],
    ids=["drop-connect", "dropout"],
)
def test_dropout_is_a_member(assign, method):
    x = torch.randn(4, 5)
    family = lb.Patch(2, assign=assign, zero=True, mixing=(0.7, 0.3), init_std=1e-8)
    outputs = []
    for each in (family, method):
        model = lb.bayesianize(dense(), each, where=lb.types(nn.Linear))
        with torch.no_grad():
            outputs.append(lb.predict(model, x, 20_000, seed=1, joint=True).outputs.double())
    mine, theirs = outputs
    assert_mean_close(mine, theirs.mean(0), sigmas=8)
    assert_variance_close(mine, theirs.var(0), sigmas=8)


@pytest.mark.parametrize(
    ("assign", "method"), [("element", lb.DropConnect(0.3)), ("input", lb.MCDropout(0.3))], ids=["element", "input"]
)
def test_dropout_has_the_divergence_of_the_family(assign, method):
    family = lb.Patch(2, assign=assign, zero=True, mixing=(0.7, 0.3), init_std=1e-8)
    model, other = (lb.bayesianize(dense(), each, where=lb.types(nn.Linear)) for each in (family, method))
    indices = 5 * 6 + 6 * 3 if assign == "element" else 5 + 6
    entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    # p |w / p|^2 / 2 = |w|^2 / (2 p) for kept weights; dropout is reported without the entropy of its masks.
    mine, theirs = (float(lb.kl(each).detach()) for each in (model, other))
    assert mine == pytest.approx(theirs - indices * entropy, rel=1e-5)


def test_an_explicit_ensemble_is_a_member():
    model = lb.bayesianize(dense(), lb.Patch(3, assign="model", init="independent"), where=lb.types(nn.Linear))
    x = torch.randn(4, 5)
    outputs = lb.predict(model, x, 20).outputs
    assert outputs.shape[0] == 3  # points are evaluated once each
    for number, output in enumerate(outputs):
        plain = dense()
        names = ("0.weight", "0.bias", "2.weight", "2.bias")
        plain.load_state_dict({name: model.get_submodule(f"{name}.posterior").copies[number] for name in names})
        torch.testing.assert_close(output, plain(x))
    lb.kl(model).backward()
    for name in names:
        copies = model.get_submodule(f"{name}.posterior").copies
        torch.testing.assert_close(copies.grad, copies.detach() / 3)


@pytest.mark.parametrize(("assign", "method"), [("layer", lb.EMP), ("element", lb.ECMP)])
def test_emp_and_ecmp_are_members(assign, method):
    x = torch.randn(4, 5)
    outputs = []
    for each in (lb.Patch(assign=assign), method()):
        model = lb.bayesianize(dense(), each)
        outputs.append(lb.predict(model, x, 10, seed=3).outputs)
        outputs.append(lb.kl(model))
    torch.testing.assert_close(outputs[0], outputs[2])
    torch.testing.assert_close(outputs[1], outputs[3])


def test_biases_can_have_a_prior_of_their_own():
    model = lb.bayesianize(dense(), lb.EMP(bias_prior=lb.Normal(0, 10)), where=lb.types(nn.Linear))
    lb.kl(model).backward()
    layer = model[0]
    torch.testing.assert_close(layer.weight.posterior.copies.grad, layer.weight.posterior.copies.detach() / 5)
    torch.testing.assert_close(layer.bias.posterior.copies.grad, layer.bias.posterior.copies.detach() / 500)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lb.EMP(3, mixing=(0.5, 0.5)), "3 probabilities above 0 with a sum of 1"),
        (lambda: lb.EMP(2, mixing=(0.5, 0.6)), "2 probabilities above 0 with a sum of 1"),
        (lambda: lb.EMP(2, mixing=(0.5, 0.5), learn_mixing=True), "not both"),
        (lambda: lb.EMP(1, zero=True), "components must be at least 2"),
        (lambda: lb.EMP(draw="example", sigma=0.1), "neither zero nor sigma"),
        (lambda: lb.EMP(sigma=-1), "sigma"),
        (lambda: lb.Patch(assign="row"), "assign"),
        (lambda: lb.Patch(assign="model", learn_mixing=True), "equal probabilities"),
        (lambda: lb.Patch(assign="input", learn_mixing=True), "fixed probabilities"),
    ],
)
def test_what_does_not_go_together_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_priors_of_biases_are_refused():
    with pytest.raises(TypeError, match="bias_prior"):
        lb.EMP(bias_prior=lb.LogUniform())
