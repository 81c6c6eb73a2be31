import numpy as np
import pytest
import torch

from leanbayes.data import generate, load, read_new


def save(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return tmp_path / "a.npz"


def test_images_and_tables_that_were_written(tmp_path):
    image = load(generate.write_npz(tmp_path / "image.npz"))
    assert image.inputs == "image" and image.shape == (1, 8, 8) and image.classes == 3
    table = load(generate.write_npz(tmp_path / "table.npz", kind="table"))
    assert table.inputs == "table" and table.task == "regression" and table.train.y.dtype == torch.float64


@pytest.mark.parametrize(
    ("shape", "dtype", "inputs", "expected"),
    [
        ((20, 5), "f4", "table", (5,)),
        ((20, 5), "i8", "table", (5,)),
        ((20, 6, 5), "u1", "image", (1, 6, 5)),
        ((20, 6, 5), "f8", "series", (6, 5)),
        ((20, 3, 6, 5), "u1", "image", (3, 6, 5)),
        ((20, 6, 5, 3), "u1", "image", (3, 6, 5)),
        ((20, 6, 5, 1), "f4", "image", (1, 6, 5)),
    ],
)
def test_shapes_tell_what_inputs_are(tmp_path, shape, dtype, inputs, expected):
    x = np.random.RandomState(0).randint(0, 9, shape).astype(dtype)
    read = load(save(tmp_path, x=x, y=np.arange(20) % 2), test=4, valid=0)
    assert read.inputs == inputs and read.shape == expected
    found = torch.cat([read.train.x, read.test.x]).double().flatten(1).sum(1).sort().values
    assert found.tolist() == sorted(x.reshape(20, -1).sum(1).astype(float).tolist())


def test_given_parts_are_kept(tmp_path):
    x = np.arange(9.0)[:, None]
    y = x[:, 0] + 0.5
    arrays = {f"{k}_{p}": v[s] for k, v in (("x", x), ("y", y)) for p, s in
              (("train", slice(0, 5)), ("valid", slice(5, 7)), ("test", slice(7, 9)))}  # fmt: skip
    read = load(save(tmp_path, **arrays))
    assert [part.y.tolist() for part in (read.train, read.valid, read.test)] == [
        y[:5].tolist(),
        y[5:7].tolist(),
        y[7:].tolist(),
    ]
    del arrays["x_valid"]
    assert len(load(save(tmp_path, **arrays), valid=2).valid) == 2


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"a": np.zeros(3)}, {}, "a.npz lacks the array 'x_train'; .* and this one holds a"),
        ({"x": np.zeros((3, 2))}, {}, "lacks the array 'y'"),
        (
            {"x": np.zeros((3, 2)), "y": np.zeros(4)},
            {},
            r"y of a.npz must hold one target for each of the 3 inputs, not \(4,\)",
        ),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2))}, {}, r"not \(3, 2\); a model predicts one target"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, {}, r"must have 2, 3 or 4 axes, not the shape \(3,\)"),
        ({"x": np.full((3, 1), np.nan), "y": np.zeros(3)}, {}, "the inputs of a.npz hold NaN or infinite values"),
        ({"x": np.zeros((3, 1), "S3"), "y": np.zeros(3)}, {}, r"the inputs of a.npz must be numbers, not \|S3"),
        ({"x": np.zeros((9, 1)), "y": np.arange(9) - 1}, {}, "from 0 to 7, but the one at position 0 is -1"),
        ({"x": np.zeros((9, 1)), "y": np.arange(9)}, {"classes": 5}, "from 0 to 4, but the one at position 5 is 5"),
        (
            {"x": np.zeros((9, 1)), "y": np.arange(9) / 2},
            {"task": "classification"},
            "must hold whole numbers for a class",
        ),
        ({"x": np.array([[{}]]), "y": np.zeros(1)}, {}, "'x' of .*a.npz holds Python objects"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, options, message):
    with pytest.raises(ValueError, match=message):
        load(save(tmp_path, **arrays), **options)


def test_texts_are_classes(tmp_path):
    x = np.arange(30.0)[:, None]
    read = load(save(tmp_path, x=x, y=np.array(["low", "high", "mid"])[np.arange(30) % 3]))
    assert read.task == "classification" and read.class_names == ("high", "low", "mid")
    for part in (read.train, read.valid, read.test):
        assert part.y.tolist() == [[1, 0, 2][int(n) % 3] for n in part.x[:, 0]]
    np.savez(tmp_path / "new.npz", x=x[:2], y=np.array(["mid", "low"]))
    assert read_new(tmp_path / "new.npz", read.schema)[1].tolist() == [2, 1]
    np.savez(tmp_path / "new.npz", x=x[:2], y=np.array(["mid", "none"]))
    with pytest.raises(ValueError, match="y of new.npz holds 'none', which training did not have"):
        read_new(tmp_path / "new.npz", read.schema)


def test_whole_floats_can_be_classes(tmp_path):
    read = load(save(tmp_path, x=np.zeros((9, 1)), y=np.arange(9.0)[:, None] % 3), task="classification")
    assert read.classes == 3 and read.train.y.dtype == torch.int64
