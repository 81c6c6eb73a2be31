"""Training steps in which one kernel draws a weight and measures its divergence, in Triton's interpreter."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.kernels._dispatch import interpreted
from leanbayes.posteriors import _gaussian, k_tied, mean_field

pytestmark = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")

METHODS = [
    lb.KTied(estimator="weight", init_std=0.1),
    lb.KTied(estimator="flipout", init_std=0.1, prior=lb.Pretrained(0.2)),
    lb.MeanField(estimator="weight", init_std=0.1, bias="same"),
    lb.MeanField(estimator="flipout", init_std=0.1, prior=lb.Pretrained(0.2)),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=str)

X = torch.randn(6, 7, generator=torch.Generator().manual_seed(1))
Y = torch.randint(3, (6,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Small weights are large enough for kernels, and the divergences that are computed on their own are counted."""
    monkeypatch.setattr(_gaussian.GaussianPosterior, "fewest", 1)
    found = []
    for module, name in ((k_tied, "tied_kl"), (mean_field, "free_kl")):
        function = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, function=function, name=name: found.append(name) or function(*args)
        )
    return found


def converted(method):
    torch.manual_seed(0)
    return lb.bayesianize(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)), method)


def alone(monkeypatch):
    """Draws are not joined with others, as in compiled code."""
    for module in (k_tied.KTiedPosterior, mean_field.MeanFieldPosterior):
        monkeypatch.setattr(module, "join_key", lambda self: None)


@each_method
def test_a_step_is_that_of_draws_and_divergence_one_by_one(method, monkeypatch, asked):
    alone(monkeypatch)
    model = converted(method)
    elbo = lb.ELBO(model, 10, samples=2)
    found = []
    for measured in (True, False):
        if not measured:
            monkeypatch.setattr(_gaussian.GaussianPosterior, "draw_measured", lambda *args: None)
        model.zero_grad()
        with lb.sampling(seed=3):
            terms = elbo(X, Y)
        assert bool(asked) != measured
        terms.loss.backward()
        found.append([terms.loss.detach(), terms.kl.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(terms.kl, lb.kl(model))


@each_method
def test_likelihood_and_divergence_may_be_differentiated_one_after_the_other(method, monkeypatch, asked):
    alone(monkeypatch)
    model = converted(method)
    parameters = list(model.parameters())
    with lb.sampling(seed=3):
        terms = lb.ELBO(model, 10)(X, Y)
    of_nll = torch.autograd.grad(terms.nll, parameters, allow_unused=True)
    of_kl = torch.autograd.grad(terms.kl, parameters, allow_unused=True)
    assert not asked
    expected = torch.autograd.grad(lb.kl(model), parameters, allow_unused=True)
    for ours, theirs in zip(of_kl, expected, strict=True):
        assert (ours is None) == (theirs is None)
        torch.testing.assert_close(ours, theirs)
    with lb.sampling(seed=3):
        terms = lb.ELBO(model, 10)(X, Y)
    both = torch.autograd.grad(terms.nll + terms.kl, parameters)
    for nll, kl, total in zip(of_nll, of_kl, both, strict=True):
        torch.testing.assert_close(nll + (0 if kl is None else kl), total)


def test_divergences_of_draws_that_are_held_follow_the_parameters(monkeypatch, asked):
    alone(monkeypatch)
    model = converted(METHODS[0])
    elbo = lb.ELBO(model, 10)
    with lb.sampling(hold=True), torch.no_grad():
        first = elbo(X, Y)
        for parameter in model.parameters():
            parameter.add_(0.1)
        second = elbo(X, Y)
        assert not second.kl.equal(first.kl)
        torch.testing.assert_close(second.kl, lb.kl(model))
    assert asked


def test_predictions_do_not_measure(monkeypatch):
    alone(monkeypatch)
    model = converted(METHODS[0])
    monkeypatch.setattr(_gaussian.GaussianPosterior, "draw_measured", None)  # it would be called
    lb.predict(model, X, 2)


@pytest.mark.parametrize("method", [METHODS[0], METHODS[3]], ids=str)
def test_one_graph_measures_what_it_draws(method, asked):
    torch._dynamo.reset()
    elbo = lb.ELBO(converted(method), 10)
    terms = torch.compile(elbo, fullgraph=True, backend="aot_eager")(X, Y)
    terms.loss.backward()
    assert not asked
    torch.testing.assert_close(terms.kl, lb.kl(elbo.model))
    assert all(p.grad.isfinite().all() for p in elbo.parameters())


def test_a_compiled_model_leaves_the_divergence_to_its_caller(monkeypatch, asked):
    alone(monkeypatch)
    torch._dynamo.reset()
    model = converted(METHODS[0])
    elbo = lb.ELBO(torch.compile(model, backend="aot_eager"), 10)
    terms = elbo(X, Y)
    assert asked
    terms.nll.backward()
    terms.kl.backward()
    torch.testing.assert_close(terms.kl, lb.kl(model))


def test_a_weight_that_is_used_twice_counts_once(monkeypatch, asked):
    alone(monkeypatch)
    torch.manual_seed(0)
    layer = nn.Linear(7, 7)
    model = lb.bayesianize(nn.Sequential(layer, nn.ReLU(), layer), METHODS[2])
    terms = lb.ELBO(model, 10)(X, Y)
    assert not asked
    torch.testing.assert_close(terms.kl, lb.kl(model))


def test_a_divergence_that_was_asked_for_before_is_not_computed_twice(monkeypatch, asked):
    alone(monkeypatch)
    model = converted(METHODS[0])
    lb.kl(model)
    asked.clear()
    terms = lb.ELBO(model, 10)(X, Y)
    assert not asked
    torch.testing.assert_close(terms.kl, lb.kl(model))


@each_method
def test_inference_mode(method, asked):
    model = converted(method)
    with torch.inference_mode():
        assert lb.predict(model, X, 2).outputs.shape == (2, 6, 3)
        terms = lb.ELBO(model, 10)(X, Y)
        torch.testing.assert_close(terms.kl, lb.kl(model))
