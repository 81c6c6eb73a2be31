import pickle

import numpy as np
import pytest
import torch

from leanbayes.data import generate, load


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar10_is_what_was_written(tmp_path, layout):
    generate.write("cifar10", tmp_path, rows=(33, 12), layout=layout)
    x, y = generate.images(45, 10, (3, 32, 32))
    read = load("cifar10", root=tmp_path, valid=0)
    assert torch.equal(read.train.x, torch.from_numpy(x[:33])) and torch.equal(read.train.y, torch.from_numpy(y[:33]))
    assert torch.equal(read.test.x, torch.from_numpy(x[33:])) and torch.equal(read.test.y, torch.from_numpy(y[33:]))
    assert read.class_names[6] == "frog"


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize(("labels", "classes"), [("fine", 100), ("coarse", 20)])
def test_cifar100_has_fine_and_coarse_labels(tmp_path, layout, labels, classes):
    folder = generate.write_cifar100(tmp_path, layout=layout)
    _, fine = generate.images(400, 100, (3, 32, 32))
    read = load("cifar100", root=folder, labels=labels, valid=0)
    assert read.train.y.tolist() == (fine if labels == "fine" else fine // 5)[:300].tolist()
    assert read.classes == classes and read.class_names[-1] == f"{labels}_{classes - 1}"


def test_labels_are_fine_or_coarse(tmp_path):
    with pytest.raises(ValueError, match="labels is one of 'fine', 'coarse', not 'super'"):
        load("cifar100", root=tmp_path, labels="super")


def test_names_of_classes_may_be_missing(tmp_path):
    folder = generate.write_cifar100(tmp_path)
    (folder / "coarse_label_names.txt").unlink()
    assert load("cifar100", root=tmp_path, labels="coarse").class_names[3] == "3"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_missing_data_say_how_to_get_them(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="CIFAR-100? was not found: .* pass download=True, or unpack cifar-10"):
        load(name, root=tmp_path)


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_a_batch_that_is_missing_is_named(tmp_path, layout):
    folder = generate.write_cifar10(tmp_path, layout=layout)
    next(folder.glob("data_batch_3*")).unlink()
    with pytest.raises(FileNotFoundError, match="CIFAR-10 is not complete: .* lacks data_batch_3"):
        load("cifar10", root=tmp_path)


def test_truncated_batch(tmp_path):
    path = generate.write_cifar10(tmp_path) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(
        ValueError, match="data_batch_2.bin is truncated: .* not a whole number of records of 3073 bytes"
    ):
        load("cifar10", root=tmp_path)


def test_labels_out_of_range(tmp_path):
    path = generate.write_cifar10(tmp_path) / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match="from 0 to 9, but the one at position 0 is 10"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "must hold a dictionary, not a list"),
        ({b"data": [1]}, "must hold 'data' and 'labels', but it holds data"),
        ({b"data": np.zeros((2, 9), np.uint8), b"labels": [0, 1]}, "rows of 3072 bytes, not uint8 of shape"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "holds 2 images but 1 labels"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [b"a"]}, "must be a list of whole numbers"),
    ],
)
def test_pickled_files_that_do_not_fit(tmp_path, content, message):
    folder = generate.write_cifar10(tmp_path, layout="python")
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=message):
        load("cifar10", root=tmp_path)


def test_a_malicious_batch_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return exec, ("raise SystemExit",)

    folder = generate.write_cifar10(tmp_path, layout="python")
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Attack()}, protocol=2))
    with pytest.raises(ValueError, match="data_batch_1 is refused: it names .*exec"):
        load("cifar10", root=tmp_path)
