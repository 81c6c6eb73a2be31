"""Rank-1 posteriors and BatchEnsemble."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._kl import put_in_order
from leanbayes._sampling import Sampling
from leanbayes.groups import ComponentGroup
from leanbayes.ops import op_for
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.testing import PosteriorSuite, assert_close, assert_mean_close, assert_probability_close


def divergence(posteriors, mixture):
    """The total of what posteriors offer."""
    terms = [term for posterior in posteriors for term in posterior.divergence_terms(None, mixture, None)]
    return sum(put_in_order(terms).values(), torch.zeros(()))


def random_factors(posterior):
    pairs = ((posterior.output, posterior.output_prior), (posterior.input, posterior.input_prior))
    return [(q, p) for q, p in pairs if p is not None]


def build(method, module=None):
    module = module or nn.Linear(2, 3)
    return method.build(module.weight, op_for(module), ComponentGroup(method.components))


class Rank1Suite(PosteriorSuite):
    method = lb.Rank1(components=2, init_std=0.3)

    def make_posterior(self):
        torch.manual_seed(1)
        return build(self.method)


class TestNormal(Rank1Suite):
    pass


class TestSpread(Rank1Suite):
    method = lb.Rank1(components=3, init_std=0.3, init_spread=0.5)


class TestSigns(Rank1Suite):
    method = lb.Rank1(components=3, init_std=0.3, random_sign=0.5)
    point_is_mean = False


class TestAdditive(Rank1Suite):
    method = lb.Rank1(components=2, init_std=0.3, form="additive", init_spread=0.5)


class TestCauchyInput(Rank1Suite):
    method = lb.Rank1(components=2, posterior="cauchy", init_std=0.3, on="input")


class TestCauchy(Rank1Suite):
    method = lb.Rank1(components=2, posterior="cauchy", init_std=0.3)
    location_is_median = False  # the product of two Cauchy factors is not symmetric


class TestLogNormal(Rank1Suite):
    method = lb.Rank1(components=2, posterior="lognormal", init_std=0.3)


class TestHalfCauchyOutput(Rank1Suite):
    method = lb.Rank1(components=2, posterior="halfcauchy", on="output")


class TestBatchEnsemble(Rank1Suite):
    draws = 50
    method = lb.BatchEnsemble(components=3, init_spread=0.5)


@pytest.mark.parametrize("form", ["multiplicative", "additive"])
@pytest.mark.parametrize(
    "module",
    [nn.Linear(4, 3), nn.Conv2d(4, 6, 2, groups=2), nn.ConvTranspose1d(4, 6, 2, groups=2), nn.Embedding(5, 3)],
    ids=["dense", "conv", "transpose", "embedding"],
)
def test_a_component_is_the_weight_with_the_outer_product_of_its_factors(module, form):
    posterior = build(lb.Rank1(components=3, form=form, init_spread=0.5), module)
    op = op_for(module)
    assert posterior.output.shape == (3, op.out_features) and posterior.input.shape == (3, op.in_features)
    for k in range(3):
        r, s = posterior.output.loc[k], posterior.input.loc[k]
        product = op.outer(module.weight.shape, s[None], r[None])[0]
        expected = module.weight + product if form == "additive" else module.weight * product
        torch.testing.assert_close(posterior.mean(k), expected.expand_as(module.weight))


def test_signs_make_a_component_the_weight_times_signs():
    torch.manual_seed(3)
    module = nn.Linear(30, 20)
    posterior = build(lb.Rank1(components=2, random_sign=0.5), module)
    r, s = posterior.output.loc[1], posterior.input.loc[1]
    assert set(r.tolist()) | set(s.tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(posterior.mean(1), module.weight * torch.outer(r, s))


def test_random_sign_is_the_probability_of_plus_one():
    posterior = build(lb.Rank1(components=4, random_sign=0.8), nn.Linear(500, 500))
    assert_probability_close((posterior.input.loc > 0).flatten(), 0.8)


@pytest.mark.parametrize("posterior", ["normal", "cauchy", "lognormal", "halfcauchy", "delta"])
def test_component_0_starts_exactly_at_the_weight_and_the_others_spread(posterior):
    module = nn.Linear(40, 30)
    built = build(lb.Rank1(components=3, posterior=posterior, init_spread=0.2), module)
    assert torch.equal(built.mean(0), module.weight)
    spread = built.input.mean()[1:].log() if posterior in ("lognormal", "halfcauchy") else built.input.mean()[1:] - 1
    assert spread.std().item() == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("posterior", ["normal", "cauchy", "lognormal", "halfcauchy"])
def test_without_signs_and_spread_all_means_are_the_weight_bit_for_bit(posterior):
    module = nn.Linear(4, 3)
    built = build(lb.Rank1(components=3, posterior=posterior), module)
    for k in range(3):
        assert torch.equal(built.mean(k), module.weight)


@pytest.mark.parametrize(("on", "random"), [("input", "input"), ("output", "output")])
def test_the_other_vector_has_point_estimates(on, random):
    built = build(lb.Rank1(components=3, on=on, init_std=0.3))
    other = "output" if random == "input" else "input"
    assert not getattr(built, random).deterministic() and getattr(built, other).deterministic()
    assert getattr(built, f"{other}_prior") is None
    assert len(random_factors(built)) == 1
    assert getattr(built, other).shape[0] == 3


def test_authors_start_is_a_dropout_rate_as_standard_deviation():
    built = build(lb.Rank1())
    expected = math.sqrt(1e-3 / (1 - 1e-3))
    torch.testing.assert_close(built.input.std(), torch.full_like(built.input.loc, expected))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (lb.Rank1(), lb.Normal(1.0, 0.1)),
        (lb.Rank1(posterior="lognormal"), lb.Normal(1.0, 0.1)),
        (lb.Rank1(posterior="cauchy"), lb.Cauchy(1.0, 0.1)),
        (lb.Rank1(posterior="halfcauchy"), lb.HalfCauchy(1.0)),
        (lb.Rank1(prior=lb.Normal(2.0, 0.5)), lb.Normal(2.0, 0.5)),
    ],
    ids=str,
)
def test_default_priors_of_the_factors(method, expected):
    built = build(method)
    assert built.output_prior == expected and built.input_prior == expected


def test_additive_form_starts_at_the_weight_under_a_prior_centred_at_zero():
    module = nn.Linear(4, 3)
    built = build(lb.Rank1(form="additive"), module)
    assert torch.equal(built.mean(), module.weight)
    assert built.output_prior == lb.Normal(0.0, 0.1) and built.input_prior == lb.Normal(1.0, 0.1)
    assert build(lb.Rank1(form="additive", posterior="cauchy")).output_prior == lb.Cauchy(0.0, 0.1)


def test_each_row_draws_its_own_factors_of_its_samples_component():
    built = build(lb.Rank1(components=2, init_std=1e-3, random_sign=0.5), nn.Linear(30, 20))
    factors = built.factors(6, Sampling(n=2, component="all"))
    for row in range(6):
        k = row // 3
        torch.testing.assert_close(factors.in_scale[row], built.input.loc[k], rtol=0, atol=0.01)
        torch.testing.assert_close(factors.out_scale[row], built.output.loc[k], rtol=0, atol=0.01)
    assert not torch.equal(factors.in_scale[0], factors.in_scale[1])


def test_rows_can_have_components_of_their_own():
    built = build(lb.BatchEnsemble(components=2, random_sign=0.5), nn.Linear(30, 20))
    component = torch.tensor([1, 0, 0, 1])
    factors = built.factors(4, Sampling(component=component))
    assert torch.equal(factors.in_scale, built.input.loc[component])


def test_dropping_the_means_leaves_nothing_of_points():
    built = build(lb.BatchEnsemble(components=3, random_sign=0.5, init_spread=0.5))
    assert torch.equal(built.deviation(30, Sampling(n=30)), torch.zeros(30, 3, 2))


def test_a_missing_component_is_named():
    built = build(lb.Rank1(components=2))
    with pytest.raises(ValueError, match="component=2 does not exist; there are 2"):
        built.mean(2)
    with pytest.raises(ValueError, match="component=5 does not exist: the model has 2 components, 0 to 1"):
        built.rsample(1, Sampling(component=5))


def test_mean_and_sum_of_the_components_divergences():
    built = build(lb.Rank1(components=3, init_std=0.2, init_spread=0.3))
    total = 0.0
    for factor, prior in random_factors(built):
        for k in range(3):
            q = torch.distributions.Normal(factor.loc[k], factor.std()[k])
            p = torch.distributions.Normal(prior.mean, prior.std)
            total += torch.distributions.kl_divergence(q, p).sum().item()
    assert divergence([built], "sum").item() == pytest.approx(total, rel=1e-5)
    assert divergence([built], "mean").item() == pytest.approx(total / 3, rel=1e-5)


def test_points_have_no_divergence():
    assert divergence([build(lb.BatchEnsemble())], "mean").item() == 0
    one_sided = build(lb.Rank1(on="input"))
    expected = kl_divergence(one_sided.input, one_sided.input_prior) / 4
    torch.testing.assert_close(divergence([one_sided], "mean"), expected)


def two_layers(posterior="normal"):
    """Two rank-1 layers with overlapping components, small enough for brute force."""
    method = lb.Rank1(components=2, posterior=posterior, init_std=0.15, init_spread=0.2)
    group = ComponentGroup(2)
    modules = nn.Linear(2, 1), nn.Linear(1, 2)
    return [method.build(m.weight, op_for(m), group).double() for m in modules]


def brute_force_joint(posteriors, draws):
    """Terms log q(z) - log p(z) of draws z from the mixture over all factors of all layers together."""
    pairs = [pair for posterior in posteriors for pair in random_factors(posterior)]
    index = torch.randint(0, 2, (draws,))
    log_q, log_p = torch.zeros(draws, 2, dtype=torch.float64), torch.zeros(draws, dtype=torch.float64)
    for factor, prior in pairs:
        z = factor.rsample_rows(index, Sampling()).detach()
        for k in range(2):
            kind = torch.distributions.Normal if hasattr(prior, "std") else torch.distributions.Cauchy
            log_q[:, k] += kind(factor.loc[k], factor.scale()[k]).log_prob(z).sum(1).detach()
        centre, scale = (prior.mean, prior.std) if hasattr(prior, "std") else (prior.loc, prior.scale)
        log_p += kind(torch.tensor(centre), torch.tensor(scale)).log_prob(z).sum(1)
    return torch.logsumexp(log_q, 1) - math.log(2) - log_p


@pytest.mark.parametrize("posterior", ["normal", "cauchy"])
@pytest.mark.parametrize("draws", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_joint_divergence_is_that_of_the_mixture_over_all_layers(posterior, draws):
    posteriors = two_layers(posterior)
    with torch.no_grad():
        estimates = torch.stack([divergence(posteriors, "joint") for _ in range(draws)])
    exact = brute_force_joint(posteriors, 1_000_000 if draws > 2000 else 200_000)
    difference = estimates - exact.mean()
    # The brute-force estimate has an error of its own.
    error = (estimates.var() / len(estimates) + exact.var() / len(exact)).sqrt()
    assert abs(difference.mean()) <= 5 * error
    bound = divergence(posteriors, "mean")
    assert estimates.mean() < bound


def test_joint_divergence_of_equal_components_is_the_mean():
    posteriors = [build(lb.Rank1(components=3, init_std=0.3)).double()]
    with torch.no_grad():
        estimates = torch.stack([divergence(posteriors, "joint") for _ in range(2000)])
    assert_mean_close(estimates, divergence([posteriors[0]], "mean").item())


def test_joint_divergence_of_far_components_is_the_mean_less_the_log_of_their_number():
    posterior = build(lb.Rank1(components=4, init_std=0.01, random_sign=0.5), nn.Linear(20, 20)).double()
    with torch.no_grad():
        estimates = torch.stack([divergence([posterior], "joint") for _ in range(500)])
    expected = divergence([posterior], "mean").item() - math.log(4)
    assert_mean_close(estimates, expected)


def test_joint_divergence_of_points_is_zero():
    assert divergence([build(lb.BatchEnsemble())], "joint").item() == 0


def test_loading_a_plain_weight_replaces_the_shared_one():
    built = build(lb.Rank1(components=2, random_sign=0.5))
    value = torch.randn(3, 2)
    built.set_point_(value)
    r, s = built.output.loc[1], built.input.loc[1]
    assert_close(built.mean(1), value * torch.outer(r, s))


def test_drawn_factors_stay_within_the_limit_and_points_are_left_alone():
    torch.manual_seed(0)
    module = nn.Linear(4, 5, bias=False)
    free = build(lb.Rank1(2, posterior="cauchy", init_std=1.0, on="input"), module)
    limited = build(lb.Rank1(2, posterior="cauchy", init_std=1.0, on="input", clip=2.0), module)
    limited.load_state_dict(free.state_dict())
    limited.output.loc.data.fill_(7.0)

    def factors(posterior):
        generator = torch.Generator().manual_seed(3)
        return posterior.factors(500, Sampling(component=1, generator=generator))

    before, after = factors(free), factors(limited)
    assert before.in_scale.abs().max() > 2
    assert torch.equal(after.in_scale, before.in_scale.clamp(-2, 2))
    assert torch.equal(after.out_scale, torch.full_like(after.out_scale, 7.0))
    assert_close(divergence([limited], "mean"), divergence([free], "mean"))


def test_limited_weights_are_the_shared_one_times_limited_factors():
    torch.manual_seed(0)
    model = lb.bayesianize(
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        lb.Rank1(2, posterior="cauchy", init_std=5.0, clip=1.5),
    )
    weight = model[0].weight
    drawn = weight.posterior.rsample(200, Sampling(n=200, component=0))
    assert (drawn / weight.posterior.weight).abs().max() <= 1.5**2 + 1e-6
    x = torch.ones(300, 4)
    with lb.sampling(hold=True):
        first = model[0](x) - model[0].bias
    most = 1.5**2 * weight.posterior.weight.abs().sum(1)
    assert (first.abs() <= most + 1e-5).all()
    seen = []
    model[0].register_forward_hook(lambda layer, args, out: seen.append(out - layer.bias))
    model(x)  # where factors of all layers are drawn together
    assert (seen[0].abs() <= most + 1e-5).all()


def test_a_joint_mixture_under_an_improper_prior_is_an_error():
    model = lb.bayesianize(nn.Linear(3, 2), lb.Rank1(prior=lb.LogUniform()))
    with pytest.raises(ValueError, match="needs a normalised density .* LogUniform does not have; use mixture='mean'"):
        lb.kl(model, mixture="joint")
