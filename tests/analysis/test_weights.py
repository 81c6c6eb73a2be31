"""The best weights of a mixture."""

import pytest
import torch

from leanbayes.analysis._weights import LEAST, best_weights


def densities(components, rows, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(components, rows, generator=generator, dtype=torch.float64)


def equal(components):
    return torch.full((components,), 1 / components, dtype=torch.float64)


def plain_em(log_density, steps=200_000):
    """The textbook algorithm, until nothing moves any more."""
    weights = equal(len(log_density))
    for _ in range(steps):
        joint = log_density + weights.log().unsqueeze(1)
        new = joint.softmax(0).mean(1)
        if (new - weights).abs().max() < 1e-13:
            break
        weights = new
    return weights


def mean_log(log_density, weights):
    return float((log_density + weights.log().unsqueeze(1)).logsumexp(0).mean())


@pytest.mark.parametrize(("components", "rows", "spread"), [(2, 30, 1.0), (5, 200, 1.0), (8, 50, 3.0), (3, 1, 1.0)])
def test_they_are_those_of_plain_em(components, rows, spread):
    log_density = densities(components, rows, spread=spread)
    found, expected = best_weights(log_density, equal(components)), plain_em(log_density)
    assert float(found.sum()) == pytest.approx(1)
    assert mean_log(log_density, found) >= mean_log(log_density, expected) - components * LEAST
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_no_weights_are_better():
    log_density = densities(6, 100, spread=2.0)
    found = best_weights(log_density, equal(6))
    generator = torch.Generator().manual_seed(1)
    for _ in range(500):
        other = torch.rand(6, generator=generator, dtype=torch.float64).pow(3)
        assert mean_log(log_density, other / other.sum()) <= mean_log(log_density, found)


def test_equal_components_leave_the_weights_alone():
    start = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = best_weights(densities(1, 50).expand(3, 50), start)
    torch.testing.assert_close(found, start, rtol=0, atol=1e-12)


def test_a_component_that_is_best_everywhere_takes_all():
    log_density = densities(3, 40)
    log_density[1] = log_density.amax(0) + 1.0
    found = best_weights(log_density, equal(3))
    assert found.argmax() == 1 and float(found[1]) == pytest.approx(1, abs=3 * LEAST) and float(found.min()) > 0


def test_hopeless_densities_are_survived_and_nan_is_an_error():
    log_density = densities(3, 40)
    log_density[0] = -5000.0
    assert best_weights(log_density, equal(3))[0] < 2 * LEAST
    log_density[0, 0] = torch.nan
    with pytest.raises(ValueError, match="density of some targets is NaN"):
        best_weights(log_density, equal(3))
