"""Notes on test examples that training has, too."""

import shutil

import numpy as np
import pytest

from leanbayes.data import generate, load


@pytest.mark.parametrize("copies", [2, 4])
def test_copies_of_rows(tmp_path, copies):
    random = np.random.RandomState(0)
    rows = [f"{a:.4f},{b:.4f}\n" for a, b in random.randn(200 // copies, 2)] * copies
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(rows))
    data = load(tmp_path / "a.csv")
    train = {(float(x), float(y)) for part in (data.train, data.valid) for x, y in zip(part.x, part.y)}
    count = sum((float(x), float(y)) in train for x, y in zip(data.test.x, data.test.y))
    assert count > 10
    assert data.notes == (
        f"{count} of the 40 test rows also occur among the training rows, with the same target; if they are copies, "
        "remove them, as they flatter every figure",
    )


def test_rows_without_a_copy(tmp_path):
    assert load(generate.write_table(tmp_path / "a.csv")).notes == ()


def test_rows_of_few_different_values_are_no_copies(tmp_path):
    rows = [f"{'no yes'.split()[i % 2]},{'abc'[i % 3]},{i % 7 % 2}\n" for i in range(200)]
    (tmp_path / "a.csv").write_text("member,region,y\n" + "".join(rows))
    assert not [note for note in load(tmp_path / "a.csv").notes if "also occur" in note]


def test_the_same_images_in_both_parts(tmp_path):
    generate.write_image_folder(tmp_path / "train", parts=None)
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    eager, lazy = (load(tmp_path, size=16, lazy=lazy).notes for lazy in (False, True))
    assert eager[0].startswith("42 of the 42 test examples also occur among the training examples") and lazy == ()
