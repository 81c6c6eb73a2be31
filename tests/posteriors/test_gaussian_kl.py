"""KL divergences of Gaussian posteriors from every prior."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

import leanbayes as lb
from leanbayes.posteriors._divergence import kl_divergence, monte_carlo_kl
from leanbayes.posteriors._gaussian_kl import log_uniform_kl, log_uniform_kl_exact
from leanbayes.posteriors.k_tied import KTiedPosterior
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.posteriors.variational_dropout import VariationalDropoutPosterior
from leanbayes.testing import assert_gradients_match, assert_mean_close, check_kl
from leanbayes.testing import integrate as integrate_density

DRAWS = [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
# Standard normal e: E log|e|.
EXPECTED_LOG = -(0.5772156649015329 + math.log(2)) / 2


def mean_field(std=0.3):
    q = MeanFieldPosterior(torch.randn(3, 2), std).double()
    with torch.no_grad():
        q.raw_std += torch.randn(3, 2, dtype=torch.float64) / 2
    return q


POSTERIORS = {
    "mean-field": mean_field,
    "k-tied": lambda: KTiedPosterior(torch.randn(3, 2), 2, 0.3),
    "dropout": lambda: VariationalDropoutPosterior(torch.randn(3, 2), "layer", -1.0),
}


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    "prior", [lb.Normal(0.0, 0.3), lb.Normal(-0.5, 2.0), lb.HeNormal(), lb.Pretrained(0.2)], ids=str
)
@pytest.mark.parametrize("family", POSTERIORS)
def test_normal_priors(family, prior, draws):
    q = POSTERIORS[family]().double()
    bound = prior.bind(torch.randn(3, 2, dtype=torch.float64), 4)
    check_kl(q, bound, draws)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.loc, q.std()), torch.distributions.Normal(bound.mean, bound.std)
    )
    torch.testing.assert_close(kl_divergence(q, bound), expected.sum())


@pytest.mark.parametrize("mean", [0.0, -0.5])
@pytest.mark.parametrize("family", POSTERIORS)
def test_gradients_of_normal_priors(family, mean):
    q = POSTERIORS[family]().double()
    names = [name for name, _ in q.named_parameters()]

    def divergence(*values):
        return torch.func.functional_call(Measured(q, lb.Normal(mean, 0.7)), dict(zip(names, values)), ())

    values = tuple(value.detach().clone().requires_grad_() for value in q.parameters())
    names = ["q." + name for name in names]
    assert torch.autograd.gradcheck(divergence, values)
    assert torch.autograd.gradgradcheck(divergence, values)
    written_out = torch.autograd.grad(divergence(*values), values)
    by_transformation = torch.func.grad(divergence, tuple(range(len(values))))(*values)
    torch.testing.assert_close(written_out, by_transformation)


def test_no_divergence_from_itself_however_many_weights():
    q = MeanFieldPosterior(torch.zeros(1000, 100), 0.3)
    assert abs(kl_divergence(q, lb.Normal(0.0, 0.3)).item()) < 0.1


class Measured(torch.nn.Module):
    """A divergence as the output of a module."""

    def __init__(self, q, prior):
        super().__init__()
        self.q, self.prior = q, prior

    def forward(self):
        return kl_divergence(self.q, self.prior)


@pytest.mark.parametrize("family", POSTERIORS)
def test_ard_is_the_divergence_from_the_best_zero_mean_normal(family):
    q = POSTERIORS[family]().double()
    best = (q.std().square() + q.loc.square()).sqrt()
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.loc, q.std()), torch.distributions.Normal(torch.zeros(()).double(), best)
    ).sum()
    alpha = (q.std() / q.loc).square()
    torch.testing.assert_close((0.5 * torch.log1p(1 / alpha)).sum(), expected)
    torch.testing.assert_close(kl_divergence(q, lb.ARD()), expected)
    assert_gradients_match(lambda: kl_divergence(q, lb.ARD()), list(q.parameters()))


def log_uniform_by_quadrature(log_alpha):
    """E log|1 / sqrt(alpha) + e| - E log|e| for standard normal e, its singularity at an end of the intervals."""
    centre = math.exp(-log_alpha / 2)

    def integrand(e):
        return math.log(abs(centre + e)) * math.exp(-e * e / 2) / math.sqrt(2 * math.pi)

    edges = [-12.0, *([-centre] if centre < 12 else []), 12.0]
    parts = [integrate.quad(integrand, a, b, limit=400, epsabs=1e-11)[0] for a, b in zip(edges, edges[1:])]
    return sum(parts) - EXPECTED_LOG


LOG_ALPHAS = np.concatenate([np.linspace(-14, 9, 47), [-4.51, -4.49, -4.5]])


def test_exact_log_uniform_divergence_equals_quadrature():
    expected = torch.tensor([log_uniform_by_quadrature(a) for a in LOG_ALPHAS], dtype=torch.float64)
    exact = log_uniform_kl_exact(torch.tensor(LOG_ALPHAS))
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-8)
    single = log_uniform_kl_exact(torch.tensor(LOG_ALPHAS).float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-6, atol=1e-6)


def test_exact_log_uniform_gradient_equals_finite_differences():
    log_alpha = torch.nn.Parameter(torch.tensor([*LOG_ALPHAS[::3], 24.9, 25.1, -30.0]))
    assert_gradients_match(lambda: log_uniform_kl_exact(log_alpha).sum(), [log_alpha], entries=100, tolerance=1e-7)


def test_exact_log_uniform_divergence_is_decreasing_to_zero_and_finite_everywhere():
    log_alpha = torch.linspace(-180, 180, 20001, dtype=torch.float64)
    value = log_uniform_kl_exact(log_alpha)
    assert value.isfinite().all() and (value.diff() <= 1e-12).all()
    assert value[-1] < 1e-70


@pytest.mark.parametrize("share", ["layer", "weight"])
def test_exact_log_uniform_divergence_compiles(share):
    q = VariationalDropoutPosterior(torch.randn(3, 2), share, -1.0)
    compiled = torch.compile(lambda: kl_divergence(q, lb.LogUniform(exact=True)), backend="aot_eager", fullgraph=True)
    value = compiled()
    torch.testing.assert_close(value, kl_divergence(q, lb.LogUniform(exact=True)))
    value.backward()
    assert q.raw_log_alpha.grad.abs().sum() > 0


def test_approximation_is_within_a_hundredth():
    log_alpha = torch.linspace(-40, 20, 6001, dtype=torch.float64)
    error = (log_uniform_kl(log_alpha) - log_uniform_kl_exact(log_alpha)).abs()
    assert 0.009 < error.max() < 0.01


@pytest.mark.parametrize("prior", [lb.LogUniform(), lb.LogUniform(exact=True), lb.StudentT(), lb.ARD()], ids=str)
def test_zero_at_infinite_alpha(prior):
    q = MeanFieldPosterior(torch.full((5,), 1e-12), 1.0)
    assert kl_divergence(q, prior).item() == pytest.approx(0, abs=1e-5)
    dropout = VariationalDropoutPosterior(torch.randn(5), "layer", 20.0)
    assert kl_divergence(dropout, prior).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("prior", [lb.LogUniform(), lb.LogUniform(exact=True), lb.StudentT()], ids=str)
def test_log_uniform_divergence_is_positive_and_the_right_way_round(prior):
    # At small alpha it is about 0.5 log(1 / alpha): a penalty on precision.
    q = VariationalDropoutPosterior(torch.ones(1), "layer", -8.0)
    assert kl_divergence(q, prior).item() == pytest.approx(4.64, abs=0.02)


@pytest.mark.parametrize("draws", DRAWS)
def test_student_with_its_constant_is_the_proper_divergence(draws):
    q, prior = mean_field(), lb.StudentT(1e-16, constant=True)
    check_kl(q, prior, draws)
    without = kl_divergence(q, lb.StudentT(1e-16))
    assert (kl_divergence(q, prior) - without).item() == pytest.approx(6 * prior.limit(), rel=1e-9)
    torch.testing.assert_close(kl_divergence(q, lb.StudentT(1e-16), constant=True), kl_divergence(q, prior))


def test_student_limit_is_the_divergence_of_a_zero_mean_normal_at_any_scale():
    prior = lb.StudentT(1e-16, constant=True)
    for std in (0.05, 3.0):
        q = MeanFieldPosterior(torch.zeros(1), std).double()
        with torch.no_grad():
            w = q.rsample(50_000, lb.Sampling(n=50_000))
            assert_mean_close(q.log_prob(w) - prior.log_prob(w), prior.limit())


@pytest.mark.parametrize(
    "prior",
    [lb.ScaleMixture(0.25, 1.0, 0.05), lb.StudentT(3.0, True), lb.StudentT(0.1, True), lb.Cauchy(0.5, 0.2)],
    ids=str,
)
def test_monte_carlo_divergences_equal_quadrature(prior):
    q = mean_field()
    with torch.no_grad():
        low, high = torch.full((3, 2), -math.inf), torch.full((3, 2), math.inf)

        def integrand(w):
            log_q = q.log_prob(w)
            return torch.where(log_q > -700, log_q.exp() * (log_q - prior.log_prob(w)), 0.0)

        expected = integrate_density(integrand, low, high, points=40_001).sum().item()
        terms = torch.stack([kl_divergence(q, prior) for _ in range(2000)])
    assert_mean_close(terms, expected)
    assert monte_carlo_kl(q, prior, 20_000).item() == pytest.approx(expected, abs=0.1)


def test_divergence_of_half_precision_parameters_is_in_float32():
    torch.manual_seed(1)
    for prior in (lb.Normal(0, 0.3), lb.LogUniform(), lb.LogUniform(exact=True), lb.ARD(), lb.StudentT()):
        q = KTiedPosterior(torch.randn(20, 30), 2, 0.05)
        full = kl_divergence(q, prior)
        half = kl_divergence(q.half(), prior)
        assert half.dtype == torch.float32
        assert half.item() == pytest.approx(full.item(), rel=0.01)
