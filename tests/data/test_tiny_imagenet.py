"""A hundred classes of Tiny ImageNet."""

import pytest

from leanbayes.data import generate, load
from leanbayes.data.tiny_imagenet import FOLDER


def test_the_tree_is_read_in_the_size_of_cifar(tmp_path):
    generate.write_image_folder(tmp_path / FOLDER, rows=(30, 12))
    data = load("tiny-imagenet-100", root=tmp_path, valid=0)
    (x, y), (x_test, _) = data.ready("train"), data.ready("test")
    assert x.shape == (30, 3, 32, 32) and x_test.shape == (12, 3, 32, 32) and sorted(set(y.tolist())) == [0, 1, 2]


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected tiny-imagenet-100-32 with folders train and val"):
        load("tiny-imagenet-100", root=tmp_path)
