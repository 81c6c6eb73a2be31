"""Snow, frost, fog and brightness against their definitions."""

import colorsys

import numpy as np
import pytest
import torch

from leanbayes.corruptions import LARGE_IMAGES, SMALL_IMAGES, corrupt
from leanbayes.corruptions._registry import CORRUPTIONS
from leanbayes.corruptions.weather import _frost_texture, _plasma

# (CIFAR-10-C, ImageNet-C) at severities 1 to 5.
SHIFTS = ([0.05, 0.1, 0.15, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5])
FOG = ([(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)], [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)])
FROST = (
    [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
)
# Mean, deviation, zoom and threshold of flakes, radius and deviation of their motion, share that is not whitened.
SNOW = (
    [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
)
CASES = [(large, severity) for large in (0, 1) for severity in range(1, 6)]


def images(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def generator():
    return torch.Generator().manual_seed(7)


def test_tables():
    for large, table in enumerate((SMALL_IMAGES, LARGE_IMAGES)):
        assert table["fog"] == tuple(FOG[large])
        assert table["frost"] == tuple(FROST[large])
        assert table["snow"] == tuple(SNOW[large])


@pytest.mark.parametrize("large,severity", CASES)
def test_brightness_shifts_the_value_in_hsv(large, severity):
    x = images(1, 3, 65, 2) if large else images(1, 3, 8, 8)
    x[0, :, 0, 0] = 0
    x[0, :, 0, 1] = torch.tensor([0.0, 1.0, 0.25])
    out = corrupt(x, "brightness", severity)
    shift = SHIFTS[large][severity - 1]
    for pixel, found in zip(x[0].flatten(1).T.tolist(), out[0].flatten(1).T.tolist()):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(found, colorsys.hsv_to_rgb(hue, saturation, min(1, value + shift)), atol=1e-9)


def test_brightness_of_grey_is_a_shift():
    x = images(1, 1, 8, 8)
    torch.testing.assert_close(corrupt(x, "brightness", 3), (x + 0.15).clamp(max=1))


def plasma_by_hand(size, decay):
    """Point by point on a torus, with the same draws."""
    draws, points, step, height = generator(), {(0, 0): 0.0}, size, 1.0
    while step > 1:
        n, half = size // step, step // 2
        noise = height * (2 * torch.rand(3, 1, n, n, dtype=torch.float64, generator=draws)[:, 0].numpy() - 1)

        def mean(*places, have=points):
            return sum(have[r % size, c % size] for r, c in places) / 4

        at = [(r, c) for r in range(0, size, step) for c in range(0, size, step)]
        for r, c in at:
            corners = (r, c), (r + step, c), (r, c + step), (r + step, c + step)
            points[r + half, c + half] = mean(*corners) + noise[0][r // step, c // step]
        for r, c in at:
            i, j = r // step, c // step
            points[r, c + half] = (
                mean((r, c), (r, c + step), (r + half, c + half), (r - half, c + half)) + noise[1][i, j]
            )
            points[r + half, c] = (
                mean((r, c), (r + step, c), (r + half, c + half), (r + half, c - half)) + noise[2][i, j]
            )
        step, height = half, height / decay**2
    grid = np.array([[points[r, c] for c in range(size)] for r in range(size)])
    return (grid - grid.min()) / (grid.max() - grid.min())


@pytest.mark.parametrize("size,decay", [(2, 3), (16, 1.4), (32, 2)])
def test_plasma_against_points_one_by_one(size, decay):
    found = _plasma(images(1, 1, 1, 1), size, decay, generator())
    np.testing.assert_allclose(found[0, 0].numpy(), plasma_by_hand(size, decay), atol=1e-12)


@pytest.mark.parametrize("large,severity", CASES)
def test_fog_adds_the_plasma_and_scales_back(large, severity):
    x = 0.8 * images(2, 3, 65, 20) if large else 0.8 * images(2, 3, 28, 20)
    thickness, decay = FOG[large][severity - 1]
    out = CORRUPTIONS["fog"](x, (thickness, decay), generator())
    plasma = _plasma(x, 128 if large else 32, decay, generator())[:, :, : x.shape[2], :20]
    for i in range(2):
        top = float(x[i].max())
        torch.testing.assert_close(out[i], (x[i] + thickness * plasma[i]) * top / (top + thickness))
        assert float(out[i].max()) <= top + 1e-12


def test_snow_without_flakes_only_whitens():
    x = images(1, 3, 8, 8)
    out = CORRUPTIONS["snow"](x, (-9, 0.1, 1, 0.5, 8, 3, 0.8), generator())
    luma = 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]
    torch.testing.assert_close(out, 0.8 * x + 0.2 * torch.maximum(x, (1.5 * luma + 0.5).unsqueeze(1)))


@pytest.mark.parametrize("large,severity", CASES)
def test_flakes_are_as_many_as_the_constants_say(large, severity):
    # Black, so that what is left of the whitened image is a constant; motion and turns keep the mean of the flakes.
    side, batch = (224, 20) if large else (32, 400)
    mean, std, zoom, threshold, radius, motion_std, share = (LARGE_IMAGES if large else SMALL_IMAGES)["snow"][
        severity - 1
    ]
    x = torch.zeros(batch, 1, side, side)
    out = CORRUPTIONS["snow"](x, (mean, std, zoom, threshold, radius, motion_std, share), generator())
    flakes = out - 0.5 * (1 - share)
    assert flakes.min() > -1e-6 and flakes.max() < 2 + 1e-6
    torch.testing.assert_close(flakes, flakes.flip(2, 3))
    if zoom == 1:
        draws = mean + std * torch.randn(2_000_000, generator=generator())
        expected = torch.where(draws < threshold, 0, draws).clamp(0, 1)
        # The blur and the turned copy tie pixels together, hence images as the units of the standard error.
        means = flakes.mean(dim=(1, 2, 3))
        assert abs(float(means.mean()) - 2 * float(expected.mean())) < 5 * float(means.std()) / batch**0.5 + 1e-3


@pytest.mark.parametrize("large,severity", CASES)
@pytest.mark.parametrize("channels", [1, 3])
def test_frost_weighs_image_and_texture(large, severity, channels):
    x = images(2, channels, 70, 50) if large else images(2, channels, 28, 32)
    weight, frost_weight = FROST[large][severity - 1]
    black = CORRUPTIONS["frost"](torch.zeros_like(x), (weight, frost_weight), generator())
    out = CORRUPTIONS["frost"](x, (weight, frost_weight), generator())
    torch.testing.assert_close(out, weight * x + black)
    texture = _frost_texture(x, generator())
    assert texture.min() >= 0 and texture.max() <= 1
    if channels == 1:
        torch.testing.assert_close(black, frost_weight * texture)
    else:
        assert (black[:, 2] >= black[:, 0]).all()


@pytest.mark.parametrize("side,batch", [(32, 100), (224, 10)])
def test_frost_textures_are_bright_and_uneven(side, batch):
    texture = _frost_texture(torch.zeros(batch, 1, side, side), generator())
    assert 0.4 < float(texture.mean()) < 0.6
    assert 0.1 < float(texture.std()) < 0.3
