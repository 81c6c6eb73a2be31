"""What holds for every corruption: form, seeds, errors, growth with severity."""

import pytest
import torch

from leanbayes.corruptions import LARGE_IMAGES, NAMES, SMALL_IMAGES, corrupt, iter_corruptions
from leanbayes.corruptions._constants import constants_for
from leanbayes.corruptions._registry import CORRUPTIONS, register

SHAPES = [(3, 3, 8, 8), (2, 1, 28, 28), (2, 3, 32, 32), (1, 3, 64, 64), (1, 3, 224, 224), (1, 1, 20, 33), (1, 3, 1, 1)]
RANDOM = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
]


def smooth_images(batch, channels, height, width):
    """Waves of random direction and phase from about 0.1 to 0.6: dark enough for white to be far."""
    generator = torch.Generator().manual_seed(5)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    waves = torch.zeros(batch, channels, height, width)
    for _ in range(4):
        a, b, phase = torch.randn(3, batch, channels, 1, 1, generator=generator)
        waves += torch.sin(8 * (a * rows + b * columns) + 3 * phase)
    return 0.35 + 0.0625 * waves


def at_severities(name, images, constants=None):
    """The images at severities 1 to 5, all with the same draws, so that chance does not order them."""
    table = constants or [constants_for(name, severity, *images.shape[2:]) for severity in range(1, 6)]
    return [CORRUPTIONS[name](images, row, torch.Generator().manual_seed(0)).clamp(0, 1) for row in table]


def distances(images, corrupted):
    return [float((out - images).abs().mean()) for out in corrupted]


def hidden(images, corrupted):
    """One minus the mean correlation with the clean image."""
    x, *ys = (y.flatten(1) - y.flatten(1).mean(dim=1, keepdim=True) for y in (images, *corrupted))
    return [1 - float(torch.cosine_similarity(x, y, dim=1).mean()) for y in ys]


def grows(values, allowed=0.0):
    return values[0] > 0 and all(b >= (1 - allowed) * a for a, b in zip(values, values[1:]))


def test_names_are_the_fifteen_published_types_in_their_order():
    assert len(NAMES) == 15 == len(CORRUPTIONS)
    assert set(NAMES) == set(CORRUPTIONS) == set(LARGE_IMAGES) == set(SMALL_IMAGES)
    assert NAMES[:3] == ("gaussian_noise", "shot_noise", "impulse_noise")
    assert all(len(table[name]) == 5 for table in (SMALL_IMAGES, LARGE_IMAGES) for name in NAMES)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_shape_dtype_and_range_stay(name, shape):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    for severity in (1, 5):
        out = corrupt(images, name, severity)
        assert out.shape == images.shape and out.dtype == images.dtype
        assert torch.isfinite(out).all() and out.min() >= 0 and out.max() <= 1
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_other_dtypes(name, dtype):
    images = smooth_images(2, 3, 16, 16).to(dtype)
    out = corrupt(images, name, 3)
    assert out.dtype == dtype
    if name not in RANDOM:
        torch.testing.assert_close(out.float(), corrupt(images.float(), name, 3), atol=0.01, rtol=0)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_constant_images(name, value):
    out = corrupt(torch.full((2, 3, 16, 16), value), name, 5)
    assert torch.isfinite(out).all()
    if "blur" in name or name in ("contrast", "elastic_transform", "pixelate", "jpeg_compression"):
        # JPEG rounds the mean of a block.
        atol = 1.01 / 255 if name == "jpeg_compression" else 1e-5
        torch.testing.assert_close(out, torch.full_like(out, value), atol=atol, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_seeds(name):
    images = smooth_images(2, 3, 16, 16)
    state = torch.get_rng_state()
    first, again, other = (corrupt(images, name, 4, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name not in RANDOM)


@pytest.mark.parametrize("name", RANDOM)
def test_images_of_a_batch_are_corrupted_differently(name):
    out = corrupt(smooth_images(1, 3, 32, 32).expand(2, -1, -1, -1), name, 4)
    assert not torch.equal(out[0], out[1])


def test_types_and_severities_draw_differently():
    images = torch.full((1, 1, 16, 16), 0.5)
    noise = [(corrupt(images, "gaussian_noise", s) - 0.5) / SMALL_IMAGES["gaussian_noise"][s - 1][0] for s in (1, 2)]
    assert (noise[0] - noise[1]).abs().max() > 0.1


BY_DISTANCE = [name for name in NAMES if name not in ("glass_blur", "frost", "fog", "elastic_transform")]


@pytest.mark.parametrize("batch,side", [(100, 32), (8, 224)])
@pytest.mark.parametrize("name", BY_DISTANCE)
def test_distance_grows_with_severity(name, batch, side):
    images = smooth_images(batch, 1, side, side)
    found = distances(images, at_severities(name, images))
    # The flakes of ImageNet-C's severities 2 and 3 differ in size, hardly in their sum.
    assert grows(found, allowed=0.02 if (name, side) == ("snow", 224) else 1e-6), found
    assert found[4] > 1.5 * found[0]


@pytest.mark.parametrize("batch,side", [(100, 32), (8, 224)])
@pytest.mark.parametrize("name", ["frost", "fog"])
def test_frost_and_fog_hide_more_with_severity(name, batch, side):
    """Both darken what they brighten, so that the distance need not grow."""
    images = smooth_images(batch, 1, side, side)
    corrupted = at_severities(name, images)
    assert grows(hidden(images, corrupted)), hidden(images, corrupted)
    assert min(distances(images, corrupted)) > 0.02


@pytest.mark.parametrize("batch,side", [(100, 32), (8, 224)])
def test_glass_moves_more_with_rounds_and_reach(batch, side):
    """At the published severities the blur takes back some of what the shuffle does: the last two exceed the first."""
    images = smooth_images(batch, 1, side, side)
    found = distances(images, at_severities("glass_blur", images))
    assert min(found[3:]) > 1.5 * found[0]
    for constants in ([(0, 1, n) for n in (1, 2, 3)], [(0, n, 1) for n in (1, 2, 4)]):
        assert grows(distances(images, at_severities("glass_blur", images, constants)))


def test_elastic_bends_more_with_severity():
    """The whole image moves less from severity to severity, its parts more."""
    images = smooth_images(100, 1, 32, 32)
    table = SMALL_IMAGES["elastic_transform"]
    whole = distances(images, at_severities("elastic_transform", images, [(0, 0, shift) for _, _, shift in table]))
    parts = distances(images, at_severities("elastic_transform", images, [(h, s, 0) for h, s, _ in table[1:]]))
    assert grows(whole[::-1]) and grows(parts), (whole, parts)


def test_iteration_goes_through_all():
    images = smooth_images(1, 1, 8, 8)
    found = [(name, severity) for name, severity, out in iter_corruptions(images) if out.shape == images.shape]
    assert found == [(name, severity) for name in NAMES for severity in range(1, 6)]
    ((name, severity, out),) = iter_corruptions(images, severities=(2,), names=("snow",), seed=3)
    assert (name, severity) == ("snow", 2) and torch.equal(out, corrupt(images, "snow", 2, seed=3))


def test_iteration_refuses_at_once():
    with pytest.raises(ValueError, match="from 1 to 5"):
        iter_corruptions(torch.zeros(1, 1, 8, 8), severities=(1, 6))


def test_an_empty_batch_stays_empty():
    assert corrupt(torch.zeros(0, 3, 8, 8), "fog", 1).shape == (0, 3, 8, 8)


def test_no_gradient():
    assert not corrupt(torch.rand(1, 1, 8, 8, requires_grad=True), "contrast", 1).requires_grad


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_severity_out_of_range(severity):
    with pytest.raises(ValueError, match=f"severity must be from 1 to 5, not {severity}"):
        corrupt(torch.zeros(1, 1, 8, 8), "fog", severity)


@pytest.mark.parametrize("severity", [1.0, True, "1", None])
def test_severity_of_another_type(severity):
    with pytest.raises(TypeError, match="severity must be a whole number"):
        corrupt(torch.zeros(1, 1, 8, 8), "fog", severity)


def test_unknown_name_lists_the_names():
    with pytest.raises(
        ValueError, match="no corruption named 'rain'; the names are gaussian_noise, .*jpeg_compression"
    ):
        corrupt(torch.zeros(1, 1, 8, 8), "rain", 1)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 2, 8, 8), (1, 4, 8, 8), (1, 3, 0, 8)], ids=str)
def test_wrong_shape(shape):
    with pytest.raises(ValueError, match="with 1 or 3 channels, not of shape"):
        corrupt(torch.zeros(shape), "fog", 1)


@pytest.mark.parametrize("bad", [-0.1, 1.5, float("inf"), float("-inf")])
def test_values_out_of_range(bad):
    images = torch.zeros(1, 1, 8, 8)
    images[0, 0, 3, 3] = bad
    with pytest.raises(ValueError, match=r"values in \[0, 1\], but they go from"):
        corrupt(images, "fog", 1)


def test_nan():
    images = torch.zeros(1, 1, 8, 8)
    images[0, 0, 3, 3] = float("nan")
    with pytest.raises(ValueError, match="some are NaN"):
        corrupt(images, "fog", 1)


def test_bytes():
    with pytest.raises(TypeError, match="divide bytes by 255"):
        corrupt(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "fog", 1)


def test_registration_refuses_duplicates():
    with pytest.raises(ValueError, match="already registered"):
        register(CORRUPTIONS["fog"])


@pytest.mark.gpu
@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("name", NAMES)
def test_cuda(name, side):
    images = smooth_images(4, 3, side, side)
    out = corrupt(images.cuda(), name, 4)
    assert out.is_cuda and torch.equal(out, corrupt(images.cuda(), name, 4))
    expected = corrupt(images, name, 4)
    if name in RANDOM:
        far, near = ((y.cpu() - images).abs().mean() for y in (out, expected))
        assert 0.6 < float(far / near) < 1.6
    elif name == "jpeg_compression":
        # A coefficient half way between two multiples may fall to either.
        assert (out.cpu() - expected).abs().mean() < 1e-4
    else:
        torch.testing.assert_close(out.cpu(), expected, atol=1e-5, rtol=0)
