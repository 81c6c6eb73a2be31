import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.data import ImageFiles, generate, load
from leanbayes.data.folder import read_image


@pytest.fixture
def tree(tmp_path):
    return generate.write_image_folder(tmp_path / "tree")


@pytest.mark.parametrize("lazy", [False, True])
def test_images_have_the_class_of_their_folder(tree, lazy):
    read = load(tree, size=32, lazy=lazy, valid=0)
    assert read.class_names == ("class_0", "class_1", "class_2") and read.shape == (3, 32, 32)
    assert (len(read.train), len(read.valid), len(read.test)) == (30, 0, 12)
    assert isinstance(read.train.x, ImageFiles) == lazy
    x, y = generate.images(42, 3, (3, 40, 32))
    # The shorter side has the size already, so the middle is cut out of the image as it is.
    middle = torch.from_numpy(x[:30, :, 4:36])
    order = np.argsort(y[:30], kind="stable")
    assert torch.equal(read.train.tensor(), middle[order])
    assert read.train.y.tolist() == y[:30][order].tolist()


def test_lazy_and_eager_sets_are_the_same(tree):
    lazy, eager = (load(tree, size=16, lazy=choice, valid=6, seed=2) for choice in (True, False))
    for name in ("train", "valid", "test"):
        assert torch.equal(lazy.part(name).tensor(), eager.part(name).tensor())
        assert torch.equal(lazy.part(name).y, eager.part(name).y)
    assert lazy.normalisation == eager.normalisation
    a, b = (list(read.batches("train", 7, shuffle=True, seed=5)) for read in (lazy, eager))
    assert len(a) == len(b) and all(torch.equal(x, z) and torch.equal(y, w) for (x, y), (z, w) in zip(a, b))


def test_large_sets_are_lazy(tree, monkeypatch):
    monkeypatch.setattr("leanbayes.data.folder._MEMORY_BYTES", 1000)
    assert isinstance(load(tree, size=16).train.x, ImageFiles)


def test_a_tree_without_parts_is_divided(tmp_path):
    read = load(generate.write_image_folder(tmp_path, parts=None), size=16)
    assert (len(read.train), len(read.valid), len(read.test)) == (31, 3, 8)


def test_what_a_mac_leaves_in_archives_is_no_class(tmp_path):
    generate.write_image_folder(tmp_path, parts=None)
    (tmp_path / "__MACOSX" / "class_0").mkdir(parents=True)
    assert load(tmp_path, size=8).class_names == ("class_0", "class_1", "class_2")


def test_three_parts(tmp_path):
    generate.write_image_folder(tmp_path, parts=("train", "val"))
    generate.write_image_folder(tmp_path, parts=("test", "test"), rows=(6, 3), seed=1)
    read = load(tmp_path, size=8)
    assert (len(read.train), len(read.valid), len(read.test)) == (30, 12, 9)


def test_images_are_read_one_by_one_or_in_batches(tree):
    files = load(tree, size=16, lazy=True, valid=0).train.x
    batch = files[torch.tensor([3, 0, 3])]
    assert batch.shape == (3, 3, 16, 16) and batch.dtype == torch.uint8
    assert torch.equal(batch[0], files[3]) and torch.equal(batch[2], files[3])
    assert files[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 16, 16)
    with pytest.raises(IndexError):
        files[30]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_any_kind_of_image_becomes_colour(tmp_path, mode):
    Image.new("RGB", (20, 10), (255, 255, 255)).convert(mode).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", 8)
    assert image.shape == (3, 8, 8) and (image == 255).all()


@pytest.mark.parametrize(("kind", "ending"), [(np.uint16, "png"), (np.uint16, "tif"), (np.int32, "tif")])
def test_sixteen_bits_keep_their_grey_levels(tmp_path, kind, ending):
    levels = np.arange(64).reshape(8, 8) * 1040
    path = tmp_path / f"a.{ending}"
    Image.fromarray(levels.astype(kind)).save(path)
    assert read_image(path, 8).tolist() == [(levels // 256).tolist()] * 3


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.linspace(0, 1, 64, dtype=np.float32), "its pixels are floating-point numbers; save it with 8 or 16 bits"),
        (np.arange(64, dtype=np.int32) * 2000, "its pixels have more than 16 bits; save it with 8 or 16 bits"),
    ],
)
def test_deeper_images_are_refused(tmp_path, pixels, message):
    Image.fromarray(pixels.reshape(8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=message):
        read_image(tmp_path / "a.tif", 8)


def test_resizing_keeps_the_shape_of_things(tmp_path):
    # A vertical edge in the middle of a wide image stays in the middle.
    pixels = np.zeros((50, 100, 3), np.uint8)
    pixels[:, 50:] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", 10)
    assert (image[:, :, :4] == 0).all() and (image[:, :, 6:] == 255).all()


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"x" * 50])
def test_unreadable_image_is_named(tree, content):
    path = next((tree / "train" / "class_1").iterdir())
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"the image {path} cannot be read"):
        load(tree, size=16)


def test_all_unreadable_images_are_named_at_once(tree):
    broken = sorted((tree / "train" / "class_1").iterdir())[:7]
    for path in broken:
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="^7 images cannot be read: .*; and 2 more$") as caught:
        load(tree, size=16)
    assert [str(path) in str(caught.value) for path in broken] == [True] * 5 + [False] * 2


def test_truncated_image_is_named(tree):
    path = next((tree / "train" / "class_1").iterdir())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        load(tree, size=16)


def test_unknown_class_in_another_part(tree):
    (tree / "val" / "class_0").rename(tree / "val" / "class_9")
    with pytest.raises(ValueError, match="class_9 is not a class of the training images"):
        load(tree, size=16)


def test_empty_class(tree):
    (tree / "train" / "class_7").mkdir()
    with pytest.raises(ValueError, match="class_7 holds no images .*; add some, or remove the folder"):
        load(tree, size=16)


def test_a_single_class_teaches_nothing(tree):
    for number in (1, 2):
        for part in ("train", "val"):
            shutil.rmtree(tree / part / f"class_{number}")
    with pytest.raises(ValueError, match="all training examples of tree belong to the class 'class_0'; two classes"):
        load(tree, size=16)


def test_size_must_be_positive(tree):
    with pytest.raises(ValueError, match="size and workers must be at least 1"):
        load(tree, size=0)
