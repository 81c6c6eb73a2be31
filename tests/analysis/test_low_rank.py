"""Non-negative factors: exact where they can be, and the least divergence otherwise."""

import pytest
import torch

from leanbayes.analysis._low_rank import Factors, _multiply, divergence, kl_factors, svd_factors, truncated
from tests.analysis.compressible import positive

CASES = {"near rank 2": (20, 30, 2, 0.1), "near rank 3": (12, 40, 3, 0.2), "no rank": (15, 8, 1, 0.8)}


@pytest.fixture(params=CASES, ids=str)
def std(request):
    return positive(*CASES[request.param])


def loss(std, factors, reverse=False):
    pair = (factors.product(), std) if reverse else (std, factors.product())
    return float(divergence(*pair).sum())


both_directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def test_divergence_is_that_of_torch():
    std, other = positive(4, 5, 2), positive(4, 5, 2, seed=1)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(0.3, std), normal(0.3, other))
    torch.testing.assert_close(divergence(std, other), expected, rtol=1e-9, atol=1e-12)
    assert divergence(std, torch.zeros_like(std)).isinf().all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_each_direction_is_best_at_its_own_divergence(std, rank):
    forward, reverse = kl_factors(std, rank), kl_factors(std, rank, reverse=True)
    assert loss(std, reverse, reverse=True) < 0.999 * loss(std, forward, reverse=True)
    assert loss(std, reverse, reverse=True) < 0.999 * loss(std, svd_factors(std, rank), reverse=True)
    assert loss(std, forward) < 0.999 * loss(std, reverse)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_divergence_is_below_that_of_the_svd(std, rank):
    best = loss(std, kl_factors(std, rank))
    assert best < 0.999 * loss(std, svd_factors(std, rank))
    # The truncated matrix itself has no sign to heed, and still is no better up to the ranks that the paper uses.
    assert rank > 2 or best < 0.999 * float(divergence(std, truncated(std, rank)).sum())


def test_more_columns_are_never_worse(std):
    losses = [loss(std, kl_factors(std, rank)) for rank in (1, 2, 3, 4)]
    assert losses == sorted(losses, reverse=True)


@both_directions
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_factors_of_the_right_rank_are_found_exactly(rank, reverse):
    std = positive(20, 30, rank) - 0.001
    assert loss(std, kl_factors(std, rank, reverse=reverse)) / std.numel() < 1e-6


@both_directions
def test_no_single_entry_can_be_improved(std, reverse):
    """The gradient in the logarithms vanishes."""
    logs = [part.requires_grad_() for part in kl_factors(std, 2, reverse=reverse).logs()]
    product = logs[0].exp() @ logs[1].exp().mT
    total = (divergence(product, std) if reverse else divergence(std, product)).mean()
    assert all(float(g.abs().max()) < 1e-4 for g in torch.autograd.grad(total, logs))


def test_rank_one_is_the_global_minimum(std):
    """For rank 1 the divergence is convex in the logarithms, and each factor has a closed form given the other."""
    u, v = torch.ones(len(std), 1).double(), torch.ones(std.shape[1], 1).double()
    for _ in range(500):
        u = (std / v.mT).square().mean(1, keepdim=True).sqrt()
        v = (std / u).square().mean(0).sqrt().unsqueeze(1)
    assert loss(std, kl_factors(std, 1)) == pytest.approx(loss(std, Factors(u, v)), rel=1e-6)
    for _ in range(500):
        u = (v.mT / std).square().mean(1, keepdim=True).rsqrt()
        v = (u / std).square().mean(0).rsqrt().unsqueeze(1)
    found = loss(std, kl_factors(std, 1, reverse=True), reverse=True)
    assert found == pytest.approx(loss(std, Factors(u, v), reverse=True), rel=1e-6)


@both_directions
def test_multiplicative_steps_only_improve(std, reverse):
    generator = torch.Generator().manual_seed(2)
    u, v = (torch.rand(size, 3, generator=generator, dtype=torch.float64) for size in std.shape)
    factors = Factors(u, v)
    before = loss(std, factors, reverse)
    for _ in range(40):
        factors = _multiply(std, factors, reverse=reverse)
        now = loss(std, factors, reverse)
        assert now <= before + 1e-9
        before = now


@pytest.mark.parametrize("rank", [1, 2])
def test_svd_factors_are_the_truncated_matrix_where_it_has_no_negative_entries(rank):
    std = positive(20, 30, 3, 0.05)
    left, values, right = torch.linalg.svd(std, full_matrices=False)
    matrix = left[:, :rank] * values[:rank] @ right[:rank]
    assert matrix.min() > 0
    factors = svd_factors(std, rank)
    assert factors.u.min() >= 0 and factors.v.min() >= 0
    torch.testing.assert_close(factors.product(), matrix)
    torch.testing.assert_close(truncated(std, rank), matrix)
    # What the posterior stores is their logarithm, which loses nothing but zeros.
    torch.testing.assert_close(
        Factors(*(part.exp() for part in factors.logs())).product(), matrix, rtol=1e-5, atol=1e-9
    )


def test_svd_factors_of_higher_rank_are_close_in_squared_error():
    std = positive(20, 30, 3, 0.05)
    factors = svd_factors(std, 3)
    assert min(part.min() for part in factors) >= 0
    assert (factors.product() - truncated(std, 3)).norm() < 0.02 * std.norm()


def test_what_is_negative_is_clipped():
    std = positive(15, 8, 1, 1.5)
    assert (truncated(std, 3) == 0).any() and truncated(std, 3).min() == 0


def test_a_matrix_of_lower_rank_than_asked_for():
    std = torch.full((6, 5), 0.05, dtype=torch.float64)
    for find in (svd_factors, kl_factors):
        for rank in (1, 2, 3):
            product = Factors(*(part.exp() for part in find(std, rank).logs())).product()
            torch.testing.assert_close(product, std, rtol=1e-4, atol=0)
