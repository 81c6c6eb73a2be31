"""Priors that rank-1 factors induce: closed forms, the library's draws, and tail indices."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import leanbayes as lb
from leanbayes.reproduce import execute
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import _tails, r1_priors

POINTS = torch.linspace(-5, 2, 40, dtype=torch.float64).exp()


def test_everything_holds(tmp_path):
    result = execute(recipes()["r1-priors"], preset="smoke", work=tmp_path, progress=False)
    assert result["checks"] and all(check["holds"] for check in result["checks"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # The product of two standard normals, and the horseshoe of Carvalho et al. (2009).
        ("normal", lambda w: special.k0(w) / math.pi),
        ("cauchy", lambda w: special.exp1(w**2 / 2) * np.exp(w**2 / 2) / math.sqrt(2 * math.pi**3)),
        ("gamma", lambda w: stats.t.pdf(w, 3)),
    ],
)
def test_densities_are_the_known_ones(name, expected):
    found = r1_priors.density(POINTS, r1_priors.FACTORS[name])
    torch.testing.assert_close(found, torch.as_tensor(expected(POINTS.numpy())), rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", r1_priors.FACTORS)
def test_the_survival_function_is_the_integral_of_the_density(name):
    one = r1_priors.FACTORS[name]
    logs = torch.linspace(-3, 1.5, 801, dtype=torch.float64)
    w = logs.exp()
    between = torch.trapezoid(r1_priors.density(w, one) * w, logs)
    ends = r1_priors.survival(w[[0, -1]], one)
    # Both signs of a weight.
    assert float(2 * between) == pytest.approx(float(ends[0] - ends[1]), rel=1e-5)


@pytest.mark.parametrize("name", r1_priors.FACTORS)
def test_all_factors_have_a_probability_of_one(name):
    _, weights = r1_priors._log_factor(r1_priors.FACTORS[name])
    assert float(weights.sum()) == pytest.approx(1, abs=1e-6)


def test_clipped_factors_are_those_that_the_library_draws():
    logs, weights = r1_priors._log_factor(r1_priors.FACTORS["cauchy-trained"], clipped=True)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-6)
    assert float(logs[weights > 0].max()) == pytest.approx(math.log(101), abs=0.02)
    torch.manual_seed(0)
    drawn = r1_priors.scales(r1_priors.FACTORS["cauchy-trained"], 50_000)
    assert float(drawn.max()) == pytest.approx(101) and float(drawn.min()) == pytest.approx(-99)


def test_product_normals_of_three():
    """w r s of standard normals, against a sum over r of the product of two."""
    x = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    logs = torch.linspace(-30, 4, 20_001, dtype=torch.float64)
    size = logs.exp()
    normal = 2 * (-0.5 * size.square()).exp() / math.sqrt(2 * math.pi) * size
    inner = torch.stack([torch.as_tensor(special.k0((value / size).numpy())) / (math.pi * size) for value in x])
    expected = torch.trapezoid(inner * normal, logs)
    torch.testing.assert_close(r1_priors.density(x, r1_priors.FACTORS["normal-both"]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("high", [math.inf, 20.0])
def test_hill_finds_the_index_of_a_pareto_tail(high):
    torch.manual_seed(0)
    values = torch.rand(200_000, dtype=torch.float64) ** (-1 / 1.7)
    index, error = _tails.hill(values, 2.0, high)
    assert abs(index - 1.7) < 4 * error < 0.1


def test_the_limit_of_hill_is_the_index_of_a_power():
    points = torch.linspace(1, 3, 2000, dtype=torch.float64).exp()
    assert _tails.hill_limit(points, points**-2.5) == pytest.approx(2.5, rel=1e-5)


def test_hill_is_near_its_limit_for_students_t():
    df, draws = 3, 400_000
    values = torch.as_tensor(stats.t.rvs(df, size=draws, random_state=0)).abs()
    low, high = (float(stats.t.isf(share / 2, df)) for share in (1e-2, 1e-3))
    points = torch.linspace(math.log(low), math.log(high), 500, dtype=torch.float64).exp()
    index, error = _tails.hill(values, low, high)
    assert abs(index - _tails.hill_limit(points, torch.as_tensor(2 * stats.t.sf(points.numpy(), df)))) < 4 * error


def test_far_out_the_index_is_that_of_the_limit():
    points = torch.linspace(8, 10, 200, dtype=torch.float64).exp()
    for name in ("cauchy", "cauchy-trained", "gamma"):
        one = r1_priors.FACTORS[name]
        assert _tails.hill_limit(points, r1_priors.survival(points, one)) == pytest.approx(one.index, rel=1e-3)


def test_where_a_posterior_is_drawn_from_there_is_no_divergence():
    for one in r1_priors.FACTORS.values():
        torch.manual_seed(0)
        drawn = r1_priors.scales(one, 50)
        assert drawn.shape == (50,) and drawn.unique().numel() == 50
        assert one.method is None or one.method.factor_prior().support == "real" or (drawn > 0).all()
    assert isinstance(r1_priors.FACTORS["cauchy"].method, lb.Rank1)
