"""Blurs against direct loops in numpy and against scipy."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from leanbayes.corruptions import LARGE_IMAGES, SMALL_IMAGES, corrupt
from leanbayes.corruptions._filters import (
    disc_kernel,
    gaussian_blur,
    motion_blur_along,
    motion_kernel,
    take_pixels,
    zoom_in,
)
from leanbayes.corruptions.blur import _shuffle

# (CIFAR-10-C, ImageNet-C) at severities 1 to 5.
DISCS = (
    [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
)
GLASS = (
    [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
)
MOTION = ([(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)], [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)])
ZOOMS = (
    [(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
    [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
)
CASES = [(large, severity) for large in (0, 1) for severity in range(1, 6)]


def images(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def disc_by_hand(radius, std):
    """The disc on a grid with room, smoothed by a Gaussian of 3 or 5 pixels."""
    line = np.arange(-16, 17)
    disc = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    near = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    smooth = np.exp(-(near**2) / (2 * std**2))
    smooth /= smooth.sum()
    return scipy.ndimage.correlate(disc / disc.sum(), np.outer(smooth, smooth), mode="constant")


def test_tables():
    for large, table in enumerate((SMALL_IMAGES, LARGE_IMAGES)):
        assert table["defocus_blur"] == tuple(DISCS[large])
        assert table["glass_blur"] == tuple(GLASS[large])
        assert table["motion_blur"] == tuple(MOTION[large])


@pytest.mark.parametrize("large,severity", CASES)
def test_zoom_factors_are_the_published_ranges(large, severity):
    count, step = (LARGE_IMAGES if large else SMALL_IMAGES)["zoom_blur"][severity - 1]
    stop, published_step = ZOOMS[large][severity - 1]
    np.testing.assert_allclose(1 + step * np.arange(count), np.arange(1, stop, published_step))


@pytest.mark.parametrize("large,severity", CASES)
def test_kernels_are_normalised(large, severity):
    assert abs(float(disc_kernel(*DISCS[large][severity - 1]).sum()) - 1) < 1e-12
    kernel = motion_kernel(*MOTION[large][severity - 1])
    assert abs(float(kernel.sum()) - 1) < 1e-12
    assert len(kernel) == 2 * MOTION[large][severity - 1][0] + 1


@pytest.mark.parametrize("large,severity", CASES)
def test_defocus_against_direct_correlation(large, severity):
    x = images(1, 3, 70, 40) if large else images(1, 3, 9, 12)
    out = corrupt(x, "defocus_blur", severity)
    kernel = disc_by_hand(*DISCS[large][severity - 1])
    for channel in range(3):
        expected = scipy.ndimage.correlate(x[0, channel].numpy(), kernel, mode="mirror")
        np.testing.assert_allclose(out[0, channel].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("std", [0.05, 0.4, 1.5, 40.0])
@pytest.mark.parametrize("border,mode", [("edge", "nearest"), ("mirror", "mirror"), ("symmetric", "reflect")])
def test_gaussian_against_scipy(std, border, mode):
    x = images(2, 1, 13, 20)
    out = gaussian_blur(x, std, truncate=3, border=border)
    for i in range(2):
        expected = scipy.ndimage.gaussian_filter(x[i, 0].numpy(), std, mode=mode, truncate=3)
        np.testing.assert_allclose(out[i, 0].numpy(), expected, atol=1e-10)


def shuffled_by_hand(pixels, offsets, reach):
    """One pixel after another, as the definition says."""
    height, width = pixels.shape
    pixels = pixels.copy()
    for h in range(height - reach, reach, -1):
        for w in range(width - reach, reach, -1):
            pixels[h, w] = pixels[h + offsets[0, h, w], w + offsets[1, h, w]]
    return pixels


@pytest.mark.parametrize("height,width,reach", [(32, 32, 1), (40, 25, 4), (8, 8, 2), (2, 5, 1), (3, 3, 4)])
def test_glass_shuffle_against_a_loop(height, width, reach):
    x = images(2, 1, height, width)
    out = take_pixels(x, _shuffle(x, reach, torch.Generator().manual_seed(3)))
    offsets = torch.randint(-reach, reach, (2, 2, height, width), generator=torch.Generator().manual_seed(3)).numpy()
    for i in range(2):
        np.testing.assert_array_equal(out[i, 0], shuffled_by_hand(x[i, 0].numpy(), offsets[:, i], reach))


def test_glass_keeps_channels_together():
    x = images(1, 1, 32, 32).expand(1, 3, 32, 32)
    out = corrupt(x, "glass_blur", 1)
    assert torch.equal(out[:, 0], out[:, 1])
    # At the first severity the blur is too narrow to reach a neighbour: values are only moved.
    assert set(out[0, 0].flatten().tolist()) <= set(x[0, 0].flatten().tolist())
    assert not torch.equal(out, x)


@pytest.mark.parametrize("large,severity", CASES)
def test_motion_against_a_loop(large, severity):
    radius, std = MOTION[large][severity - 1]
    x = images(2, 1, 11, 14)
    degrees = torch.tensor([31.0, -118.0], dtype=torch.float64)
    out = motion_blur_along(x, radius, std, degrees)
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * std**2))
    weights /= weights.sum()
    for i, angle in enumerate(np.deg2rad(degrees.numpy())):
        expected = np.zeros((11, 14))
        for h in range(11):
            for w in range(14):
                rows = np.clip(h + np.ceil(steps * np.sin(angle) - 0.5).astype(int), 0, 10)
                columns = np.clip(w + np.ceil(steps * np.cos(angle) - 0.5).astype(int), 0, 13)
                expected[h, w] = (weights * x[i, 0].numpy()[rows, columns]).sum()
        np.testing.assert_allclose(out[i, 0].numpy(), expected, atol=1e-10)


def zoomed_by_hand(pixels, factor):
    side = len(pixels)
    inner = int(np.ceil(side / factor))
    top = (side - inner) // 2
    big = scipy.ndimage.zoom(pixels[top : top + inner, top : top + inner], factor, order=1)
    cut = (len(big) - side) // 2
    return big[cut : cut + side, cut : cut + side]


@pytest.mark.parametrize("side,factor", [(32, 1.0), (32, 1.07), (32, 1.25), (32, 2.25), (224, 4.5), (28, 1.75), (8, 3)])
def test_zoom_against_scipy(side, factor):
    x = images(1, 1, side, side)
    np.testing.assert_allclose(zoom_in(x, factor)[0, 0].numpy(), zoomed_by_hand(x[0, 0].numpy(), factor), atol=1e-10)


@pytest.mark.parametrize("large,severity", CASES)
def test_zoom_blur_is_the_mean_of_the_image_and_its_enlargements(large, severity):
    side = 80 if large else 32
    x = images(1, 1, side, side)
    factors = np.arange(1, *ZOOMS[large][severity - 1])
    expected = (x[0, 0].numpy() + sum(zoomed_by_hand(x[0, 0].numpy(), f) for f in factors)) / (len(factors) + 1)
    np.testing.assert_allclose(corrupt(x, "zoom_blur", severity)[0, 0].numpy(), expected, atol=1e-8)
