"""Moments of the noise against the published constants, within five standard errors."""

import math

import pytest
import torch

from leanbayes.corruptions import corrupt
from leanbayes.corruptions._registry import CORRUPTIONS

# (CIFAR-10-C, ImageNet-C) at severities 1 to 5.
STD = ([0.04, 0.06, 0.08, 0.09, 0.10], [0.08, 0.12, 0.18, 0.26, 0.38])
PHOTONS = ([500, 250, 100, 75, 50], [60, 25, 12, 5, 3])
SHARE = ([0.01, 0.02, 0.03, 0.05, 0.07], [0.03, 0.06, 0.09, 0.17, 0.27])
CASES = [(large, severity) for large in (0, 1) for severity in range(1, 6)]


def grey(large, value):
    return torch.full((1, 1, 300, 300) if large else (40, 1, 48, 48), value, dtype=torch.float64)


@pytest.mark.parametrize("large,severity", CASES)
def test_gaussian(large, severity):
    std = STD[large][severity - 1]
    images = grey(large, 0.5)
    generator = torch.Generator().manual_seed(severity)
    noise = CORRUPTIONS["gaussian_noise"](images, (std,), generator) - images
    error = std / math.sqrt(2 * noise.numel())
    assert abs(float(noise.std()) - std) < 5 * error
    assert abs(float(noise.mean())) < 5 * std / math.sqrt(noise.numel())
    # Through `corrupt` the noise is clipped: the share at the bounds is the normal's tail.
    out = corrupt(images, "gaussian_noise", severity)
    tail = 0.5 * math.erfc(0.5 / std / math.sqrt(2))
    for bound in (0, 1):
        found = float((out == bound).double().mean())
        assert abs(found - tail) <= 5 * math.sqrt(tail * (1 - tail) / out.numel()) + 2 / out.numel()
    # Half of a normal's mass lies within 0.67449 standard deviations, clipped or not.
    inside = float(((out - 0.5).abs() < 0.67449 * std).double().mean())
    assert abs(inside - 0.5) < 5 * 0.5 / math.sqrt(out.numel())


@pytest.mark.parametrize("large,severity", CASES)
def test_shot(large, severity):
    photons = PHOTONS[large][severity - 1]
    out = corrupt(grey(large, 0.25), "shot_noise", severity) * photons
    torch.testing.assert_close(out, out.round(), atol=1e-9, rtol=0)
    rate = 0.25 * photons
    # The probability of each count below the clip, from the Poisson law.
    for count in {math.floor(rate), math.floor(rate) + 1}:
        p = math.exp(count * math.log(rate) - rate - math.lgamma(count + 1))
        found = float((out.round() == count).double().mean())
        assert abs(found - p) < 5 * math.sqrt(p * (1 - p) / out.numel())
    if not large:
        error = rate * math.sqrt((2 + 1 / rate) / out.numel())
        assert abs(float(out.var()) - rate) < 5 * error


@pytest.mark.parametrize("large,severity", CASES)
def test_impulse(large, severity):
    share = SHARE[large][severity - 1]
    out = corrupt(grey(large, 0.5), "impulse_noise", severity)
    for value in (0, 1):
        found = float((out == value).double().mean())
        assert abs(found - share / 2) < 5 * math.sqrt(share / 2 * (1 - share / 2) / out.numel())
    assert ((out == 0) | (out == 1) | (out == 0.5)).all()


def test_black_has_no_shot_noise():
    assert corrupt(torch.zeros(1, 3, 8, 8), "shot_noise", 5).abs().max() == 0
