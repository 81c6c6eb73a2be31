"""The noise that explains held-out rows best under a mixture of predictions."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.objectives.noise import held_out_variance


def outputs(samples=4, rows=60, outputs=2, spread=0.5):
    generator = torch.Generator().manual_seed(0)
    means = spread * torch.randn(samples, rows, outputs, generator=generator, dtype=torch.float64)
    noise = torch.tensor([0.3, 2.0], dtype=torch.float64)[:outputs]
    return means, noise * torch.randn(rows, outputs, generator=generator, dtype=torch.float64)


def mixture_nll(means, targets, variance, weights=None):
    """The NLL by torch's own distributions."""
    normal = torch.distributions.Normal(means, torch.as_tensor(variance, dtype=torch.float64).sqrt())
    log_prob = normal.log_prob(targets).sum(-1).logsumexp(0) - math.log(len(means))
    weights = torch.ones(len(targets), dtype=torch.float64) if weights is None else weights
    return float(-(weights * log_prob).sum() / weights.sum())


def test_one_sample_is_the_mean_square():
    means, targets = outputs(samples=1)
    squares = (targets - means).square()
    torch.testing.assert_close(held_out_variance(squares), squares[0].sum(0) / 58)
    torch.testing.assert_close(held_out_variance(squares, shared=True), squares.sum() / 118)


def test_no_other_variance_explains_the_mixture_better():
    means, targets = outputs()
    weights = torch.arange(1.0, 61.0, dtype=torch.float64)
    count = float(weights.sum() ** 2 / weights.square().sum())
    variance = held_out_variance((targets - means).square(), weights) * ((count - 2) / count)
    best = mixture_nll(means, targets, variance, weights)
    for factor in (0.9, 0.97, 1.03, 1.1):
        for output in range(2):
            other = variance.clone()
            other[output] *= factor
            assert mixture_nll(means, targets, other, weights) > best


def test_the_factor_for_few_rows_has_the_least_expected_nll():
    rows, draws = 12, 200_000
    generator = torch.Generator().manual_seed(0)
    residuals = torch.randn(draws, rows, generator=generator, dtype=torch.float64)
    mean_square = residuals.square().mean(1)

    def expected(factor):  # of a new residual, in closed form
        return float((0.5 * (factor * mean_square).log() + 0.5 / (factor * mean_square)).mean())

    chosen = float(held_out_variance(torch.ones(1, rows, 1)))
    assert chosen == pytest.approx(rows / (rows - 2))
    assert expected(chosen) < min(expected(1.0), expected(0.95 * chosen), expected(1.05 * chosen))


def test_positions_of_a_row_share_its_sample():
    means, targets = outputs(outputs=2)
    as_positions = held_out_variance((targets - means).square().unsqueeze(-1))
    together = held_out_variance((targets - means).square(), shared=True)
    torch.testing.assert_close(as_positions, together.view(1))


@pytest.mark.parametrize("kind", ["learned", "given", "heteroscedastic"])
def test_gaussian_predicts_with_the_factor_and_trains_without(kind):
    means, targets = outputs()
    given = {"learned": "learned", "given": 3.0, "heteroscedastic": None}[kind]
    likelihood = lb.Gaussian(given, outputs=2, held_out=True).double()
    plain = lb.Gaussian(given, **({"outputs": 2} if kind == "learned" else {})).double()
    predicted = torch.cat([means, 0.3 * means], -1) if kind == "heteroscedastic" else means
    before = plain.log_prob(predicted, targets)
    torch.testing.assert_close(likelihood.log_prob(predicted, targets), before)

    likelihood.fit_held_out_(predicted, targets)
    torch.testing.assert_close(likelihood.training_score(predicted, targets).sum(-1), before)
    mean, log_var = (part.detach() for part in likelihood.split(predicted))
    nll = mixture_nll(mean, targets, log_var.exp())
    log_prob = likelihood.log_prob(predicted, targets).detach()
    assert float(-log_prob.logsumexp(0).mean()) == pytest.approx(nll - math.log(4))
    for change in (-0.1, 0.1):
        # Beyond the correction for the number of rows.
        assert mixture_nll(mean, targets, (log_var + math.log(58 / 60)).exp()) < mixture_nll(
            mean, targets, (log_var + math.log(58 / 60) + change).exp()
        )


def test_a_predicted_variance_is_cut_to_the_largest_square_of_the_rows_held_out():
    means, targets = outputs()
    log_var = (2 * means).clone()
    log_var[:, :3] = 15.0  # as far from all other rows
    likelihood = lb.Gaussian(outputs=2, held_out=True).double()
    plain = lb.Gaussian().double()
    predicted = torch.cat([means, log_var], -1)
    likelihood.fit_held_out_(predicted, targets)

    largest = (targets - means).square().flatten(0, 1).amax(0)
    torch.testing.assert_close(likelihood.log_most, largest.log())
    cut = torch.cat([means, torch.minimum(log_var, largest.log())], -1)
    # No row is less likely under any sample, and those with too large a noise are more likely.
    before, after = plain.elementwise(predicted, targets), plain.elementwise(cut, targets)
    assert bool((after >= before).all()) and bool((after[:, :3] > before[:, :3]).all())
    new = torch.cat([means, torch.full_like(means, 30.0)], -1)
    torch.testing.assert_close(likelihood.split(new)[1], (largest.log() + likelihood.log_factor).expand(means.shape))
    # The factor is that of the variances as they are cut.
    torch.testing.assert_close(
        likelihood.log_factor,
        held_out_variance((targets - means).square() * (-cut[..., 2:]).exp(), log_scale=cut[..., 2:]).log(),
    )


def test_the_factor_is_saved():
    likelihood, other = (lb.Gaussian(1.0, held_out=True) for _ in range(2))
    likelihood.fit_held_out_(torch.zeros(1, 50, 1), torch.full((50,), 3.0))
    other.load_state_dict(likelihood.state_dict())
    assert float(other.split(torch.zeros(1, 1, 1))[1].exp()) == pytest.approx(9 * 50 / 48, rel=1e-6)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match=r"Gaussian\(held_out=...\) takes True or False, not 'yes'"):
        lb.Gaussian(1.0, held_out="yes")
    with pytest.raises(ValueError, match="held_out=True"):
        lb.Gaussian(1.0, outputs=2)
