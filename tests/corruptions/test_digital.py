"""Contrast, elastic distortion, pixels and JPEG against their definitions, scipy and Pillow."""

import io

import numpy as np
import pytest
import scipy.fft
import scipy.ndimage
import torch
from torch.nn import functional as F

from leanbayes.corruptions import LARGE_IMAGES, SMALL_IMAGES, corrupt
from leanbayes.corruptions._jpeg import CHROMA_TABLE, LUMA_TABLE, _lossy, jpeg, quantisation_table
from leanbayes.corruptions.digital import _affine_positions, _pixel_positions, _pixelate_matrix, _sample

# (CIFAR-10-C, ImageNet-C) at severities 1 to 5.
FACTORS = ([0.75, 0.5, 0.4, 0.3, 0.15], [0.4, 0.3, 0.2, 0.1, 0.05])
SHARES = ([0.95, 0.9, 0.85, 0.75, 0.65], [0.6, 0.5, 0.4, 0.3, 0.25])
QUALITIES = ([80, 65, 58, 50, 40], [25, 18, 15, 10, 7])
CASES = [(large, severity) for large in (0, 1) for severity in range(1, 6)]


def images(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def picture(side, channels=3):
    """Bytes with large shapes, edges and a little noise, as in photographs: ``[H, W, C]``."""
    rng = np.random.default_rng(0)
    smooth = scipy.ndimage.gaussian_filter(
        rng.normal(size=(side, side, channels)), (side / 8, side / 8, 0), mode="wrap"
    )
    shapes = 0.5 + 0.2 * smooth / smooth.std() + 0.2 * (smooth[..., :1] > 0)
    return (255 * np.clip(shapes + 0.02 * rng.normal(size=shapes.shape), 0, 1)).round().astype(np.uint8)


def as_batch(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0) / 255


@pytest.mark.parametrize("large,severity", CASES)
def test_contrast(large, severity):
    x = images(2, 3, 65, 9) if large else images(2, 3, 8, 9)
    mean = x.numpy().mean(axis=(2, 3), keepdims=True)
    expected = (x.numpy() - mean) * FACTORS[large][severity - 1] + mean
    np.testing.assert_allclose(corrupt(x, "contrast", severity).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("large,severity", CASES)
def test_pixelate_against_pillow(large, severity):
    image = pytest.importorskip("PIL.Image")
    side = 224 if large else 32
    pixels, share = picture(side), SHARES[large][severity - 1]
    small = image.fromarray(pixels).resize((int(side * share),) * 2, image.Resampling.BOX)
    expected = np.array(small.resize((side, side), image.Resampling.BOX))
    out = corrupt(as_batch(pixels), "pixelate", severity)
    # Pillow rounds to bytes after each of the two axes.
    assert (255 * out - 255 * as_batch(expected)).abs().max() <= 1.01


@pytest.mark.parametrize("severity,factor", [(2, 2), (5, 4)])
def test_pixelate_by_whole_factors(severity, factor):
    x = images(2, 3, 80, 72)
    expected = F.interpolate(F.avg_pool2d(x, factor), scale_factor=factor, mode="nearest")
    torch.testing.assert_close(corrupt(x, "pixelate", severity), expected)


def test_pixelate_matrix_is_a_mean_over_boxes():
    matrix = _pixelate_matrix(8, 5)
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(8, dtype=torch.float64))
    assert len({tuple(row) for row in matrix.tolist()}) == 5


def test_elastic_table():
    small = [(0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)]
    large = [(488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88)]
    np.testing.assert_allclose(SMALL_IMAGES["elastic_transform"], small)
    np.testing.assert_allclose(224 * np.array(LARGE_IMAGES["elastic_transform"]), large)


@pytest.mark.parametrize("mirror,mode", [(True, "mirror"), (False, "reflect")])
def test_sampling_against_scipy(mirror, mode):
    x = images(2, 1, 9, 13)
    noise = torch.randn(2, 2, 9, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = _pixel_positions(x) + 6 * noise
    out = _sample(x, positions, mirror)
    for i in range(2):
        expected = scipy.ndimage.map_coordinates(x[i, 0].numpy(), positions[i].numpy(), order=1, mode=mode)
        np.testing.assert_allclose(out[i, 0].numpy(), expected, atol=1e-10)


def test_affine_map_brings_moved_points_back():
    x = images(3, 1, 32, 26)
    positions = _affine_positions(x, 2.5, torch.Generator().manual_seed(1))
    draw = 2 * torch.rand(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1
    points = torch.tensor([[16, 13], [16, 13], [16, 13]]).double().T + 8 * torch.tensor([[1, 1, -1], [1, -1, -1]])
    for i in range(3):
        origin = positions[i, :, 0, 0]
        matrix = torch.stack([positions[i, :, 1, 0] - origin, positions[i, :, 0, 1] - origin], dim=1)
        torch.testing.assert_close(matrix @ (points + 2.5 * draw[i]) + origin.unsqueeze(1), points)


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_displacements_have_the_published_size(severity):
    """On images whose value is the row, the distance is the displacement; the affine part moves points by its share."""
    side, (_, _, shift) = 32, SMALL_IMAGES["elastic_transform"][severity - 1]
    rows = torch.linspace(0, 1, side).view(1, 1, side, 1).expand(300, 1, side, side)
    moved = (corrupt(rows, "elastic_transform", severity) - rows)[:, :, 8:24, 8:24] * (side - 1) / side
    # A uniform shift of three points by up to `shift` moves the middle by about shift / 2 (two points on average).
    assert 0.3 * shift < float(moved.std()) < 1.2 * shift


def test_quantisation_tables():
    assert torch.equal(quantisation_table(LUMA_TABLE, 50), torch.tensor(LUMA_TABLE))
    assert quantisation_table(LUMA_TABLE, 100).eq(1).all()
    assert quantisation_table(CHROMA_TABLE, 1).eq(255).all()


@pytest.mark.parametrize("quality", [7, 25, 40, 58, 80])
def test_quantisation_tables_against_pillow(quality):
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(picture(16)).save(buffer, "JPEG", quality=quality)
    stored = image.open(buffer).quantization
    for index, table in enumerate((LUMA_TABLE, CHROMA_TABLE)):
        assert sorted(stored[index]) == sorted(quantisation_table(table, quality).flatten().tolist())


def test_blocks_against_scipy():
    x = 255 * images(1, 1, 16, 24) - 128
    out = _lossy(x, LUMA_TABLE, 30)
    steps = quantisation_table(LUMA_TABLE, 30).numpy()
    for row in range(0, 16, 8):
        for column in range(0, 24, 8):
            block = x[0, 0, row : row + 8, column : column + 8].numpy()
            kept = np.round(scipy.fft.dctn(block, norm="ortho") / steps) * steps
            expected = scipy.fft.idctn(kept, norm="ortho")
            np.testing.assert_allclose(out[0, 0, row : row + 8, column : column + 8].numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("large,severity", CASES)
def test_jpeg_against_pillow(large, severity, channels):
    image = pytest.importorskip("PIL.Image")
    pixels = picture(224 if large else 32, channels)
    buffer = io.BytesIO()
    image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=QUALITIES[large][severity - 1])
    expected = as_batch(np.array(image.open(buffer)).reshape(pixels.shape))
    out = corrupt(as_batch(pixels), "jpeg_compression", severity)
    lost = (as_batch(pixels) - expected).abs().mean()
    # In mean 0.6 of a byte from libjpeg at most, and 15 % of what compression itself changes.
    assert 255 * (out - expected).abs().mean() < 0.6
    assert (out - expected).abs().mean() < 0.15 * lost


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_loses_more_at_lower_quality(channels):
    x = as_batch(picture(64, channels))
    lost = [float((jpeg(x, quality) - x).square().mean()) for quality in (95, 80, 60, 40, 20, 10, 5)]
    assert lost == sorted(lost) and lost[0] < 1e-3


@pytest.mark.parametrize("height,width", [(9, 31), (8, 8), (17, 8), (28, 28)])
def test_jpeg_of_odd_sizes_against_pillow(height, width):
    image = pytest.importorskip("PIL.Image")
    pixels = np.ascontiguousarray(picture(32)[:height, :width])
    buffer = io.BytesIO()
    image.fromarray(pixels).save(buffer, "JPEG", quality=50)
    expected = as_batch(np.array(image.open(buffer)))
    assert 255 * (jpeg(as_batch(pixels), 50) - expected).abs().mean() < 0.6
