import numpy as np
import pytest
import torch

from leanbayes.data import generate, load
from leanbayes.data._idx import idx_bytes


@pytest.mark.parametrize("compressed", [False, True])
def test_what_was_written_is_read(tmp_path, compressed):
    generate.write("mnist", tmp_path, rows=(30, 20), compressed=compressed)
    x, y = generate.images(50)
    read = load("mnist", root=tmp_path, valid=0)
    assert torch.equal(read.train.x, torch.from_numpy(x[:30])) and torch.equal(read.train.y, torch.from_numpy(y[:30]))
    assert torch.equal(read.test.x, torch.from_numpy(x[30:])) and torch.equal(read.test.y, torch.from_numpy(y[30:]))
    assert read.train.x.dtype == torch.uint8 and read.shape == (1, 28, 28) and read.classes == 10


def test_root_may_be_the_folder_itself(tmp_path):
    folder = generate.write_mnist(tmp_path)
    assert len(load("mnist", root=folder).test) == 100


def test_fashion_has_its_own_folder_and_names(tmp_path):
    generate.write("mnist", tmp_path)
    with pytest.raises(FileNotFoundError, match="Fashion-MNIST was not found: looked for train-images-idx3-ubyte"):
        load("fashion-mnist", root=tmp_path)
    generate.write("fashion-mnist", tmp_path)
    assert load("fashion-mnist", root=tmp_path).class_names[9] == "Ankle boot"


def test_missing_data_say_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="MNIST/raw.*pass download=True, or put the four idx files there"):
        load("mnist", root=tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path):
    folder = generate.write_mnist(tmp_path)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError, match="MNIST is not complete: .* lacks t10k-labels-idx1-ubyte; pass download"
    ):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.zeros(7, np.uint8), "MNIST holds 200 images but 7 labels"),
        (
            "train-labels-idx1-ubyte",
            np.full(200, 11, np.uint8),
            "must be from 0 to 9, but the one at position 0 is 11",
        ),
        (
            "train-labels-idx1-ubyte",
            np.zeros((200, 1), np.uint8),
            r"one label per image, not an array of shape \(200, 1\)",
        ),
        (
            "t10k-images-idx3-ubyte",
            np.zeros((100, 28), np.uint8),
            r"must hold grey images of bytes, not .* \(100, 28\)",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path, file, array, message):
    folder = generate.write_mnist(tmp_path)
    (folder / file).write_bytes(idx_bytes(array))
    with pytest.raises(ValueError, match=message):
        load("mnist", root=tmp_path)
