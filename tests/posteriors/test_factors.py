"""The distributions of rank-1 factors."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.noise import CAUCHY_LIMIT
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors._factors import CauchyPosterior, HalfCauchyPosterior, LogNormalPosterior
from leanbayes.testing import PosteriorSuite, assert_mean_close, check_kl, integrate


class TestCauchy(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return CauchyPosterior(torch.randn(3, 2), 0.3)


class TestLogNormal(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return LogNormalPosterior(torch.rand(3, 2) + 0.5, 0.4)


class TestHalfCauchy(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return HalfCauchyPosterior(torch.rand(3, 2) + 0.5, 0.3)


@pytest.mark.parametrize("family", [LogNormalPosterior, HalfCauchyPosterior])
def test_positive_families_start_at_the_given_value_and_stay_positive(family):
    value = torch.tensor([[0.5, 2.0]])
    posterior = family(value, 0.3)
    torch.testing.assert_close(posterior.mean(), value)
    assert (posterior.rsample(1000, Sampling(n=1000)) > 0).all()


def test_log_normal_mean_is_the_mean_and_not_the_median():
    posterior = LogNormalPosterior(torch.full((2,), 3.0), 1.0)
    assert_mean_close(posterior.rsample(100_000, Sampling(n=100_000)), 3.0)


@pytest.mark.parametrize("family", [CauchyPosterior, LogNormalPosterior, HalfCauchyPosterior])
def test_rows_come_from_the_chosen_components(family):
    posterior = family(torch.tensor([[1.0], [100.0]]), 0.01)
    index = torch.tensor([0, 1, 1, 0]).repeat(500)
    rows = posterior.rsample_rows(index, Sampling())
    assert rows.shape == (2000, 1)
    medians = [rows[index == k].median().item() for k in (0, 1)]
    assert medians == pytest.approx([1.0, 100.0], rel=0.2)


def test_cauchy_draws_are_bounded_in_scales():
    posterior = CauchyPosterior(torch.zeros(2000), 1e-2)
    draws = posterior.rsample(200, Sampling(n=200))
    assert draws.isfinite().all() and draws.abs().max() <= 1e-2 * CAUCHY_LIMIT * 1.0001


def test_a_half_cauchy_draw_of_zero_noise_has_a_finite_divergence_from_every_prior(monkeypatch):
    monkeypatch.setattr(HalfCauchyPosterior, "draw_noise", staticmethod(lambda shape, like, spec: torch.zeros(shape)))
    posterior = HalfCauchyPosterior(torch.full((2, 3), 0.8), 0.3)
    divergence = kl_divergence(posterior, lb.LogNormal(0.0, 1.0))
    divergence.backward()
    assert divergence.isfinite() and posterior.loc.grad.isfinite().all()


DRAWS = [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(
    ("family", "prior"),
    [
        (CauchyPosterior, lb.Cauchy(1.0, 0.1)),
        (CauchyPosterior, lb.Cauchy(-0.5, 2.0)),
        (HalfCauchyPosterior, lb.HalfCauchy(0.3)),
        (LogNormalPosterior, lb.LogNormal(0.2, 0.7)),
        (LogNormalPosterior, lb.Normal(1.0, 0.5)),
    ],
    ids=str,
)
def test_closed_forms_equal_monte_carlo(family, prior, draws):
    check_kl(family(torch.rand(3, 2) + 0.5, 0.3), prior, draws)


def test_closed_forms_equal_those_of_torch():
    cauchy, log_normal = CauchyPosterior(torch.randn(3), 0.3), LogNormalPosterior(torch.rand(3) + 0.5, 0.4)
    for q, p, kind in (
        (cauchy, lb.Cauchy(1.0, 0.1), torch.distributions.Cauchy),
        (log_normal, lb.LogNormal(0.2, 0.7), torch.distributions.LogNormal),
    ):
        expected = torch.distributions.kl_divergence(
            kind(q.loc, q.scale()), kind(torch.tensor(p.loc), torch.tensor(p.scale))
        )
        torch.testing.assert_close(kl_divergence(q, p), expected.sum())


@pytest.mark.parametrize(
    ("family", "prior"),
    [
        (HalfCauchyPosterior, lb.LogNormal(0.1, 0.8)),
        (LogNormalPosterior, lb.HalfCauchy(0.6)),
        (LogNormalPosterior, lb.Cauchy(0.5, 0.4)),
        (LogNormalPosterior, lb.ScaleMixture(0.5, 2.0, 0.5)),
        (CauchyPosterior, lb.StudentT(0.5, constant=True)),
    ],
    ids=str,
)
def test_monte_carlo_divergences_equal_quadrature(family, prior):
    q = family(torch.rand(2) + 0.5, 0.3).double()
    low = torch.zeros(2) if q.support == "positive" else torch.full((2,), -math.inf)
    with torch.no_grad():

        def integrand(w):
            log_q = q.log_prob(w)
            return torch.where(log_q > -700, log_q.exp() * (log_q - prior.log_prob(w)), 0.0)

        expected = integrate(integrand, low, torch.full((2,), math.inf), points=40_001).sum().item()
        terms = torch.stack([kl_divergence(q, prior) for _ in range(2000)])
    # Cauchy noise is clipped where 0.06 % of its mass lies, so that its estimates are that far off.
    slack = 0.01 if q.heavy_tailed else 0.0
    assert abs(terms.mean().item() - expected) <= 5 * (terms.std() / len(terms) ** 0.5).item() + slack


@pytest.mark.parametrize(
    ("family", "prior", "message"),
    [
        (CauchyPosterior, lb.Normal(0, 1), "a Cauchy posterior under a Normal prior has an infinite KL divergence"),
        (HalfCauchyPosterior, lb.ScaleMixture(), "a HalfCauchy posterior under a ScaleMixture prior has an infinite"),
        (CauchyPosterior, lb.HalfCauchy(1.0), "a Cauchy posterior under the positive HalfCauchy prior has an infinite"),
        (CauchyPosterior, lb.LogUniform(), "no KL divergence of a Cauchy posterior from the prior LogUniform is known"),
        (LogNormalPosterior, lb.ARD(), "no KL divergence of a LogNormal posterior from the prior ARD is known"),
    ],
    ids=str,
)
def test_infinite_and_unknown_divergences_are_refused(family, prior, message):
    with pytest.raises(ValueError, match=message):
        kl_divergence(family(torch.ones(2), 0.3), prior)
