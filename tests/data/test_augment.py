import numpy as np
import pytest
import torch
import torch.nn.functional as F

from leanbayes.data.augment import Chain, Flip, PadCrop, standard


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_crops_are_windows_of_the_padded_image(dtype, mode):
    images = torch.randint(0, 256, (40, 3, 9, 7)).to(dtype)
    cropped = PadCrop(3, mode)(images, generator())
    padded = F.pad(images.float(), (3, 3, 3, 3), mode=mode).to(dtype)
    shifts = torch.randint(-3, 4, (2, 40), generator=generator())
    for image, result, down, right in zip(padded, cropped, shifts[0] + 3, shifts[1] + 3):
        assert torch.equal(result, image[:, down : down + 9, right : right + 7])
    assert cropped.dtype == dtype


def test_borders_wider_than_the_image_are_reflected_again():
    images = torch.rand(30, 1, 4, 3)
    cropped = PadCrop(11, "reflect")(images, generator())
    shifts = torch.randint(-11, 12, (2, 30), generator=generator()) + 11
    for image, result, down, right in zip(images, cropped, *shifts):
        padded = np.pad(image[0].numpy(), 11, mode="reflect")
        assert np.array_equal(result[0], padded[down : down + 4, right : right + 3])


def test_every_place_is_as_likely():
    images = torch.zeros(9000, 1, 5, 5)
    images[:, :, 2, 2] = 1
    places = PadCrop(1)(images, generator()).sum((0, 1))
    assert places[1:4, 1:4].sum() == 9000
    # Nine places, standard error sqrt(n p (1 - p)) = 29.8.
    assert ((places[1:4, 1:4] - 1000).abs() < 4 * 29.8).all()


def test_border_value():
    assert (PadCrop(2, fill=7)(torch.zeros(50, 1, 4, 4), generator()) == 7).any()


def test_one_pixel_is_reflected_onto_itself():
    images = torch.rand(4, 1, 1, 1)
    assert torch.equal(PadCrop(2, "reflect")(images, generator()), images)


def test_half_of_the_images_are_flipped():
    images = torch.rand(4000, 1, 2, 3)
    flipped = Flip()(images, generator())
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert (mirrored ^ same).all()
    assert abs(int(mirrored.sum()) - 2000) < 4 * 31.7


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_or_all_are_flipped(p):
    images = torch.rand(5, 2, 3, 3)
    assert torch.equal(Flip(p)(images, generator()), images.flip(3) if p else images)


def test_the_seed_decides():
    images = torch.rand(8, 3, 8, 8)
    chain = Chain(PadCrop(2), Flip())
    assert torch.equal(chain(images, generator(1)), chain(images, generator(1)))
    assert not torch.equal(chain(images, generator(1)), chain(images, generator(2)))


def test_the_original_is_not_changed():
    images = torch.rand(8, 3, 8, 8)
    copy = images.clone()
    Chain(PadCrop(2), Flip(1.0))(images, generator())
    assert torch.equal(images, copy)


@pytest.mark.parametrize("make", [lambda: PadCrop(-1), lambda: PadCrop(1, "wrap"), lambda: Flip(1.5)])
def test_arguments_are_checked(make):
    with pytest.raises(ValueError):
        make()


def test_wrong_shape():
    with pytest.raises(ValueError, match=r"takes batches of images \[B, C, H, W\], not shape \(3, 8, 8\)"):
        Flip()(torch.zeros(3, 8, 8), generator())


def test_the_standard_border_is_an_eighth_of_the_shorter_side():
    shapes = (3, 32, 32), (3, 224, 160), (1, 8, 8), (1, 4, 4)
    assert [standard(shape).steps[0].padding for shape in shapes] == [4, 20, 1, 1]
    images = torch.rand(64, 3, 16, 16)
    changed = standard(images.shape[1:])(images, generator())
    assert changed.shape == images.shape and not torch.equal(changed, images)


@pytest.mark.gpu
def test_a_generator_of_the_cpu_gives_the_same_images_everywhere():
    images = torch.rand(16, 3, 8, 8)
    chain = Chain(PadCrop(2), Flip())
    assert torch.equal(chain(images.cuda(), generator()).cpu(), chain(images, generator()))


@pytest.mark.gpu
def test_draws_are_those_of_the_generators_device():
    images = torch.rand(40, 3, 9, 7, device="cuda")

    def seeded(seed):
        return torch.Generator("cuda").manual_seed(seed)

    cropped = PadCrop(3)(images, seeded(1))
    shifts = torch.randint(-3, 4, (2, 40), generator=seeded(1), device="cuda").tolist()
    padded = F.pad(images, (3, 3, 3, 3))
    for image, result, down, right in zip(padded, cropped, *shifts):
        assert torch.equal(result, image[:, down + 3 : down + 12, right + 3 : right + 10])
    chosen = torch.rand(40, generator=seeded(1), device="cuda") < 0.5
    flipped = Flip()(images, seeded(1))
    assert torch.equal(flipped[chosen], images[chosen].flip(3)) and torch.equal(flipped[~chosen], images[~chosen])
