import json

import pytest
import torch
from torch.utils.data import DataLoader

from leanbayes.data import Affine, Column, Dataset, Normalisation, Part, Schema


def part(rows, features=2):
    return Part(torch.randn(rows, features, dtype=torch.float64), torch.randn(rows, dtype=torch.float64))


@pytest.fixture
def regression():
    train = part(20)
    scaling = Normalisation(Affine.fit(train.x), Affine.fit(train.y))
    return Dataset("made", Schema("regression", "table", (2,), normalisation=scaling), train, part(4), part(6))


def test_properties_come_from_the_schema(regression):
    assert regression.task == "regression" and regression.inputs == "table"
    assert regression.shape == (2,) and regression.classes is None and regression.class_names == ()
    assert repr(regression) == "Dataset('made': table (2,), regression, 20 train, 4 valid, 6 test)"


def test_ready_is_scaled_with_the_training_part(regression):
    x, y = regression.ready("test")
    assert x.dtype == y.dtype == torch.float32
    mean, std = regression.train.x.mean(0), regression.train.x.std(0, unbiased=False)
    torch.testing.assert_close(x, ((regression.test.x - mean) / std).float())
    restored = regression.normalisation.restore_targets(y.double())
    torch.testing.assert_close(restored, regression.test.y, atol=1e-6, rtol=1e-5)


def test_batches_are_scaled(regression):
    whole = regression.ready("train")
    batches = list(regression.batches("train", 8))
    assert [len(x) for x, _ in batches] == [8, 8, 4]
    torch.testing.assert_close(torch.cat([x for x, _ in batches]), whole[0])
    torch.testing.assert_close(torch.cat([y for _, y in batches]), whole[1])


def test_a_part_is_what_a_data_loader_takes(regression):
    batches = list(DataLoader(regression.train, batch_size=8))
    assert torch.equal(torch.cat([x for x, _ in batches]), regression.train.x)


def test_limited_takes_evenly_spaced_rows_and_says_so(regression):
    few = regression.limited(5)
    # From the first row to the last, 4.75 apart.
    assert torch.equal(few.train.x, regression.train.x[[0, 5, 10, 14, 19]])
    assert [len(few.train), len(few.valid), len(few.test)] == [5, 4, 5]
    assert few.notes == ("limited to 5 of 20 train, 4 of 4 valid, 5 of 6 test examples",)
    assert few.schema is regression.schema
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        regression.limited(0)


def test_unknown_part_is_an_error(regression):
    with pytest.raises(ValueError, match="the parts are train, valid, test, not 'tset'"):
        regression.ready("tset")


def test_inputs_without_targets_are_an_error():
    with pytest.raises(ValueError, match="3 inputs but 2 targets"):
        Part(torch.zeros(3, 1), torch.zeros(2))


def test_schema_survives_json():
    schema = Schema(
        task="classification",
        inputs="table",
        shape=(4,),
        class_names=("a", "b"),
        normalisation=Normalisation(Affine.fit(torch.randn(5, 4))),
        columns=(Column("x"), Column("colour", ("blue", "green", "red"))),
        target="y",
        vocabulary=("the", "a"),
        missing="mean",
        file_options={"separator": ";", "header": True, "na": ["?"]},
    )
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.classes == 2 and [column.width for column in schema.columns] == [1, 3]


def test_damaged_schema_is_an_error():
    with pytest.raises(ValueError, match="the description of the data is damaged"):
        Schema.from_json({"task": "regression"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "ranking"}, "task is one of classification, binary, regression, not 'ranking'"),
        ({"inputs": "sound"}, "inputs is one of image, table, text, series, not 'sound'"),
        ({"class_names": ("a",)}, "a task 'regression' does not go with 1 class names"),
    ],
)
def test_schema_checks_its_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        Schema(**({"task": "regression", "inputs": "table", "shape": (1,)} | fields))
