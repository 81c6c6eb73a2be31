"""Posteriors that are drawn by kernels, in Triton's interpreter: their suite, and the sampling state."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.kernels._dispatch import interpreted
from leanbayes.posteriors import _gaussian, patch
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.k_tied import KTiedPosterior
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.posteriors.patch import PatchGroup, PatchPosterior
from leanbayes.testing import PosteriorSuite

pytestmark = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")


@pytest.fixture(autouse=True)
def small_weights_are_large_enough(monkeypatch):
    monkeypatch.setattr(_gaussian.GaussianPosterior, "fewest", 1)
    monkeypatch.setattr(patch, "_FEWEST", 1)


class KernelSuite(PosteriorSuite):
    draws = 300  # the interpreter takes milliseconds for each

    def test_kernels_draw_it(self, monkeypatch):
        """The suite would pass without them, too."""
        asked = []
        for module in (_gaussian, patch):
            monkeypatch.setattr(module.noise, "keys", lambda *args: asked.append(args) or torch.zeros(1).long())
        self.make_posterior().rsample(1, Sampling())
        assert len(asked) == 1


class TestKTied(KernelSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return KTiedPosterior(torch.randn(3, 2, 2), 2, 0.3)


class TestKTiedOnSecondAxis(KernelSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return KTiedPosterior(torch.randn(2, 3, 2), 1, 0.3, out_axis=1)


class TestMeanField(KernelSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return MeanFieldPosterior(torch.randn(3, 2), 0.3)


class TestECMP(KernelSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return PatchPosterior(torch.randn(3, 2), PatchGroup(3, False, True), 0.5)


FAMILIES = [KTiedPosterior(torch.randn(12, 7), 2, 0.3), MeanFieldPosterior(torch.randn(12, 7), 0.3)]
each_family = pytest.mark.parametrize("posterior", FAMILIES, ids=lambda q: type(q).__name__)
PRIORS = [lb.Normal(0.1, 0.3), lb.Pretrained(0.2)]


@each_family
@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_divergence_is_that_of_plain_torch(posterior, prior, monkeypatch):
    q = copy.deepcopy(posterior)
    bound = prior.bind(torch.randn(12, 7), 7)
    found = kl_divergence(q, bound)
    grads = torch.autograd.grad(found, list(q.parameters()))
    monkeypatch.setattr(type(q), "fewest", 10**9)
    expected = kl_divergence(q, bound)
    torch.testing.assert_close(found, expected)
    for ours, plain in zip(grads, torch.autograd.grad(expected, list(q.parameters())), strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_prior_that_lies_otherwise_in_memory_is_left_to_plain_torch():
    q = MeanFieldPosterior(torch.randn(12, 7), 0.3)
    centre = torch.randn(7, 12).t()
    bound = lb.Pretrained(0.2).bind(centre, 7)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.loc, q.std()), torch.distributions.Normal(centre, 0.2)
    )
    torch.testing.assert_close(kl_divergence(q, bound), expected.sum())


@each_family
def test_subclasses_and_float64_are_left_to_plain_torch(posterior):
    class Other(type(posterior)):
        def scale(self):
            return super().scale() * 0

    q = copy.deepcopy(posterior)
    q.__class__ = Other
    assert q.rsample(2, Sampling(n=2)).equal(q.loc.expand(2, -1, -1))
    assert not copy.deepcopy(posterior).double().is_fused() and copy.deepcopy(posterior).is_fused()


@pytest.mark.parametrize("method", [lb.KTied(estimator="weight"), lb.MeanField(estimator="weight")], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_layers_draw_in_the_dtype_of_autocast_but_lookups_and_divergences_do_not(method, dtype):
    dense = lb.bayesianize(nn.Linear(6, 5), method)
    table = lb.bayesianize(nn.Embedding(6, 5), method, where=lb.types(nn.Embedding))
    torch.manual_seed(1)
    expected = kl_divergence(dense.weight.posterior, lb.ScaleMixture())
    with torch.autocast("cpu", dtype):
        assert dense.weight.rsample(1, Sampling()).dtype == dtype
        assert table.weight.rsample(1, Sampling()).dtype == torch.float32
        assert dense(torch.randn(3, 6)).dtype == dtype
        assert table(torch.tensor([1, 2])).dtype == torch.float32
        assert lb.kl(dense).dtype == torch.float32
        torch.manual_seed(1)
        assert kl_divergence(dense.weight.posterior, lb.ScaleMixture()).equal(expected)
    assert dense.weight.rsample(1, Sampling()).dtype == torch.float32


METHODS = [
    lb.KTied(estimator="weight"),
    lb.KTied(estimator="flipout"),
    lb.MeanField(estimator="weight", bias="same"),
    lb.MeanField(estimator="flipout"),
    lb.ECMP(components=3),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=str)


def converted(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    net = net.to(memory_format=torch.channels_last)
    return lb.bayesianize(net, method, where=lb.types(nn.Conv2d, nn.Linear))


X = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randint(5, (6,), generator=torch.Generator().manual_seed(2))


@each_method
def test_seeds_streams_and_chunks(method):
    model = converted(method)
    outputs = [lb.predict(model, X, 4, seed=seed, joint=True, chunk=chunk).outputs for seed, chunk in SEEDS]
    assert outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[3])
    torch.testing.assert_close(outputs[2], outputs[0])
    state = torch.get_rng_state()
    with lb.sampling(n=2, seed=3):
        first = model(lb.fold(X, 2))
    assert torch.get_rng_state().equal(state)
    with lb.sampling(n=2, seed=3):
        assert model(lb.fold(X, 2)).equal(first)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    drawn = []
    for generator in generators:
        with lb.sampling(generator=generator):
            drawn.append(model(X))
    assert drawn[0].equal(drawn[1])


SEEDS = [(0, 4), (0, 4), (0, 2), (1, 4)]


@each_method
def test_one_graph_trains_predicts_and_is_exported(method):
    torch._dynamo.reset()
    model = converted(method)
    elbo = torch.compile(lb.ELBO(model, 100), fullgraph=True, backend="aot_eager")
    terms = [elbo(X, Y) for _ in range(2)]
    assert not terms[0].loss.equal(terms[1].loss)
    terms[0].loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outputs = [lb.predict(compiled, X, 2, seed=seed).outputs for seed in (0, 0, 1)]
    assert outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[2])
    program = torch.export.export(model, (X,))
    assert any("leanbayes" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("method", [lb.KTied(), lb.MeanField(estimator="weight")], ids=str)
def test_frozen_means_get_no_gradient(method):
    model = lb.bayesianize(nn.Linear(6, 5), method, freeze=True)
    lb.ELBO(model, 100)(torch.randn(6, 6), Y).loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is None} == {
        name for name, p in model.named_parameters() if not p.requires_grad
    }
    assert model.weight.posterior.loc.grad is None
