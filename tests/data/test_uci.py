import numpy as np
import pytest
import torch

from leanbayes.data import generate, load


@pytest.fixture
def folder(tmp_path):
    return generate.write_uci(tmp_path, "yacht", rows=50, features=3)


def test_splits_are_the_published_rows(tmp_path, folder):
    x, y = generate.regression(50, 3)
    for split in range(3):
        read = load("uci-yacht", root=tmp_path, split=split, valid=0)
        train, test = (np.loadtxt(folder / f"index_{part}_{split}.txt", int) for part in ("train", "test"))
        assert np.array_equal(read.train.x, x[train]) and np.array_equal(read.train.y, y[train])
        assert np.array_equal(read.test.x, x[test]) and np.array_equal(read.test.y, y[test])
    assert read.task == "regression" and read.inputs == "table" and read.shape == (3,)


def test_targets_are_scaled_and_restored(tmp_path, folder):
    read = load("uci-yacht", root=tmp_path)
    _, y = read.ready("train")
    assert abs(float(y.mean())) < 1e-6 and float(y.std(unbiased=False)) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(read.normalisation.restore_targets(y.double()), read.train.y, rtol=1e-6, atol=1e-5)


def test_boston_has_another_name_for_its_folder(tmp_path):
    folder = generate.write_uci(tmp_path, "boston-housing")
    assert folder.parent.name == "bostonHousing"
    assert load("uci-boston-housing", root=tmp_path).name == "uci-boston-housing"
    assert load("uci-bostonHousing", root=tmp_path).shape == (6,)


def test_a_split_that_is_not_there(tmp_path, folder):
    with pytest.raises(ValueError, match="uci-yacht has the splits 0 to 2, not 3"):
        load("uci-yacht", root=tmp_path, split=3)


def test_a_set_that_is_not_there(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="uci-wine was not found: .*; the sets there are yacht"):
        load("uci-wine", root=tmp_path)
    with pytest.raises(FileNotFoundError, match="get the set from https"):
        load("uci-wine", root=tmp_path / "empty")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data.txt", "1 2 3 a\n", "data.txt is not a table of numbers"),
        ("data.txt", "1 2 3 4\n1 2\n", "data.txt is not a table of numbers"),
        ("data.txt", "", "data.txt is empty"),
        ("data.txt", "1 2 3 nan\n", "data.txt holds values that are missing or infinite"),
        ("index_features.txt", "0\n7\n", "must hold whole numbers from 0 to 3"),
        ("index_target.txt", "2\n3\n", "must name one column, not 2"),
        ("index_test_0.txt", "0\n1.5\n", "must hold whole numbers from 0 to 49"),
    ],
)
def test_files_that_do_not_fit(tmp_path, folder, file, content, message):
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        load("uci-yacht", root=tmp_path)


def test_rows_in_both_parts(tmp_path, folder):
    (folder / "index_test_0.txt").write_text((folder / "index_train_0.txt").read_text())
    with pytest.raises(ValueError, match="split 0 of uci-yacht has rows both in train and in test"):
        load("uci-yacht", root=tmp_path)
