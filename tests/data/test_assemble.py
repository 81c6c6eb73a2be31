import pytest
import torch

from leanbayes.data import Column, Part
from leanbayes.data._assemble import assemble


def labelled(rows=100, classes=4):
    return Part(torch.randint(0, 256, (rows, 3, 4, 4), dtype=torch.uint8), torch.arange(rows) % classes)


NAMES = ["a", "b", "c", "d"]


def test_parts_share_no_example_and_classes_are_in_proportion():
    whole = Part(torch.arange(100.0).view(100, 1), torch.arange(100) % 4)
    made = assemble("made", "classification", "table", whole, class_names=NAMES, valid=0.25, test_share=20)
    parts = made.train, made.valid, made.test
    assert [len(part) for part in parts] == [60, 20, 20]
    assert torch.equal(torch.cat([part.x for part in parts]).flatten().sort().values, torch.arange(100.0))
    assert all(torch.bincount(part.y).tolist() == [len(part) // 4] * 4 for part in parts)


def test_scaling_is_fitted_on_the_training_part_alone():
    train, test = labelled(), Part(torch.zeros(5, 3, 4, 4, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))
    made = assemble("made", "classification", "image", train, test, class_names=NAMES)
    pixels = made.train.x.double() / 255
    assert made.normalisation.inputs.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-9)
    assert made.normalisation.targets is None


@pytest.mark.parametrize(("normalise", "low", "high"), [("unit", 0, 1), ("symmetric", -1, 1), ("none", 0, 1)])
def test_ranges_of_pixels(normalise, low, high):
    train = labelled()
    train.x[0, 0, 0, :2] = torch.tensor([0, 255], dtype=torch.uint8)
    x, _ = assemble("made", "classification", "image", train, class_names=NAMES, normalise=normalise).ready("train")
    assert x.dtype == torch.float32
    assert x.min() >= low and x.max() <= high


def test_ranges_of_pixels_are_no_option_for_tables():
    with pytest.raises(
        ValueError, match="normalise is one of standard, none for inputs of the kind 'table', not 'unit'"
    ):
        assemble("made", "regression", "table", Part(torch.zeros(9, 1), torch.zeros(9)), normalise="unit")


def test_categories_stay_zeros_and_ones():
    x = torch.tensor([[5.0, 1, 0], [7.0, 0, 1]]).repeat(10, 1)
    columns = [Column("a"), Column("b", ("u", "v"))]
    made = assemble("made", "regression", "table", Part(x, torch.randn(20)), columns=columns)
    assert set(made.ready("train")[0][:, 1:].flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_out_of_range(label):
    train = labelled()
    train.y[7] = label
    with pytest.raises(ValueError, match=f"labels of made must be from 0 to 3, but the one at position 7 is {label}"):
        assemble("made", "classification", "image", train, class_names=NAMES)


@pytest.mark.parametrize(
    ("task", "y", "names", "error", "message"),
    [
        ("classification", torch.zeros(9), NAMES, TypeError, "must be whole numbers, not torch.float32"),
        ("binary", torch.zeros(9, dtype=torch.int64), NAMES, ValueError, "a binary task has 2 classes"),
        ("regression", torch.full((9,), torch.nan), [], ValueError, "9 targets of made are NaN or infinite"),
        ("regression", torch.zeros(9, 2), [], ValueError, r"one number per example, not of shape \(9, 2\)"),
    ],
)
def test_targets_that_do_not_fit(task, y, names, error, message):
    with pytest.raises(error, match=message):
        assemble("made", task, "table", Part(torch.zeros(9, 1), y), class_names=names)
