import numpy as np
import pytest
import torch

from leanbayes.data import generate, load


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_rows_are_what_was_written(tmp_path, ending):
    path = generate.write_table(tmp_path / f"a.{ending}", rows=50, features=3)
    read = load(path)
    x, y = generate.regression(50, 3)
    parts = read.train, read.valid, read.test
    assert [len(part) for part in parts] == [36, 4, 10]
    found = torch.cat([torch.cat([part.x, part.y.unsqueeze(1)], 1) for part in parts]).numpy()
    expected = np.column_stack([x, y])
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], expected[np.argsort(expected[:, 0])])
    assert read.task == "regression" and read.shape == (3,) and read.schema.target == "y" and read.notes == ()


def test_text_target_gives_classes(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", task="classification"))
    assert read.task == "classification" and read.class_names == ("high", "low")
    assert torch.bincount(read.test.y).tolist() == [20, 20]


def test_target_by_name_and_columns_left_out(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    read = load(path, target="x2", drop=["colour", "y"])
    assert [column.name for column in read.schema.columns] == ["x1", "x3", "x4"] and read.schema.target == "x2"


def test_a_text_column_is_one_clear_sentence(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    message = (
        r"^column 'colour' of a.csv holds text \('\w+' in row 1\); pass categories=\['colour'\] to use its values as "
    )
    with pytest.raises(ValueError, match=message):
        load(path)


def test_categories_become_inputs(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    read = load(path, categories=["colour"])
    assert read.schema.columns[-1].categories == ("blue", "green", "red") and read.shape == (7,)
    ready, _ = read.ready("test")
    assert (ready[:, 4:].sum(1) == 1).all() and set(ready[:, 4:].unique().tolist()) == {0.0, 1.0}


def test_categories_are_fitted_on_the_training_rows(tmp_path):
    # Every row has a value of its own, so that only those of training rows can be categories.
    (tmp_path / "a.csv").write_text("k,y\n" + "".join(f"v{i},{i}.5\n" for i in range(20)))
    read = load(tmp_path / "a.csv", categories=["k"], test=5, valid=3)
    assert read.shape == (12,)
    assert (read.train.x.sum(1) == 1).all() and (read.valid.x == 0).all() and (read.test.x == 0).all()


def test_missing_values_are_reported(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", missing=7)
    with pytest.raises(
        ValueError, match=r"a.csv has missing values \(7 in 'x1'\); pass missing='mean' .* missing='drop'"
    ):
        load(path)


def test_missing_values_left_out(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", missing=7), missing="drop")
    assert len(read.train) + len(read.valid) + len(read.test) == 193
    assert read.notes == ("7 of 200 rows were left out for missing values: 7 in 'x1'",)


def test_missing_values_filled_with_the_training_mean(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", missing=40), missing="mean")
    assert len(read.train) + len(read.valid) + len(read.test) == 200
    gaps = read.train.x[:, 0].isnan()
    ready, _ = read.ready("train")
    assert gaps.any() and (ready[gaps, 0] == 0).all() and ready.isfinite().all()
    mean, std = read.normalisation.inputs.mean[0], read.normalisation.inputs.std[0]
    known = read.train.x[~gaps, 0]
    assert mean == pytest.approx(float(known.mean())) and std == pytest.approx(float(known.std(unbiased=False)))


def test_missing_targets_cannot_be_filled(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2.5\n2,\n")
    with pytest.raises(ValueError, match="the target 'y' of a.csv is missing in 1 rows, which cannot be filled"):
        load(tmp_path / "a.csv", missing="mean")


def whole_numbers(tmp_path, values):
    lines = "".join(f"{i / 7},{values[i % len(values)]}\n" for i in range(200))
    (tmp_path / "a.csv").write_text("x,y\n" + lines)
    return tmp_path / "a.csv"


def test_few_whole_numbers_are_classes_unless_told_otherwise(tmp_path):
    path = whole_numbers(tmp_path, [3, 5, 10])
    assert load(path).class_names == ("3", "5", "10")
    assert load(path, task="regression").task == "regression"
    assert load(whole_numbers(tmp_path, range(21))).task == "regression"
    assert load(whole_numbers(tmp_path, [0.5, 1.5])).task == "regression"


def test_binary_has_two_classes(tmp_path):
    read = load(whole_numbers(tmp_path, [0, 1]), task="binary")
    assert read.task == "binary" and read.classes == 2
    with pytest.raises(ValueError, match="a binary task has 2 classes"):
        load(whole_numbers(tmp_path, [0, 1, 2]), task="binary")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,y\n1,a\n2,a\n3,a\n", {}, "the target 'y' of a.csv has only the value 'a'; two classes are needed"),
        ("y\n1\n2\n", {}, "a.csv has no column besides the target 'y'"),
        ("x,y\n1,2\n", {"target": "z"}, "a.csv has no column 'z'; its columns are x, y"),
        ("x,y\n1,2\n", {"drop": ["z"]}, "a.csv has no column 'z'"),
        ("x,y\n1,2\n", {"target": "x", "categories": ["x"]}, "the target 'x' of a.csv is among the categories"),
        ("x,y\n1,2\n", {"missing": "zero"}, "missing is one of 'error', 'drop', 'mean', not 'zero'"),
        ("x,y\n1,2\n", {"task": "ranking"}, "task is one of"),
        ("x,y\n1,a\n2,b\n", {"task": "regression"}, r"column 'y' of a.csv holds text \('a' in row 1\)$"),
        ("x,y\n,1.5\n,2.5\n", {"missing": "drop"}, "every row of a.csv has a missing value"),
        (
            "x,z,y\n,1,1.5\n,2,2.5\n,2,4.5\n",
            {"missing": "mean", "valid": 0},
            "column 'x' of a.csv has no values to train",
        ),
        ("x,y\ninf,1.5\n1,2.5\n", {}, "column 'x' of a.csv holds an infinite number in row 1"),
        (
            "x,y\n" + "".join(f"{i},{i}\n" for i in range(30)),
            {"task": "classification"},
            "30 values in 30 rows, too many",
        ),
        ("x,y\n1,2.5\n", {"test": 0.9}, "cannot hold out 1 of 1 examples"),
    ],
)
def test_tables_and_options_that_do_not_fit(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.csv", **options)


def test_lists_are_not_texts(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(TypeError, match="categories and drop are lists of names"):
        load(tmp_path / "a.csv", drop="x")
