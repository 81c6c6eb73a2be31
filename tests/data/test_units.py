import numpy as np
import pyarrow
import pytest

from leanbayes.data import Schema, TableError, load, read_new, read_rows
from leanbayes.data._formats import find_format, read_as

MANY = [str(n) for n in range(1, 41)]


def read(*texts):
    """The unit that is found beside the numbers of a column, and what they are read as."""
    column = pyarrow.chunked_array([list(texts)])
    form = find_format(column)
    if form.kind != "number":
        return form.kind, None
    values, wrong = read_as(column, form)
    assert not wrong.any()
    return form.unit, values.tolist()


@pytest.mark.parametrize(
    ("texts", "unit", "values"),
    [
        (("5 kg", "3.2 kg"), "kg", [5, 3.2]),
        (("5kg", "3,2kg"), "kg", [5, 3.2]),
        (("1.234,50 km", "2 km"), "km", [1234.5, 2]),
        (("1\u202f000 km", "-2 000 km"), "km", [1000, -2000]),
        (("\u22123.5 °C", "4 °C"), "°C", [-3.5, 4]),
        (("5 m2", "6.5 m2"), "m2", [5, 6.5]),
        (("10 sq ft", "20 sq ft"), "sq ft", [10, 20]),
        (("1 year", "2 years", "3 years"), "years", [1, 2, 3]),
        (("EUR 5", "EUR 1,234.50"), "EUR", [5, 1234.5]),
        (("5 USD", "6.50 USD"), "USD", [5, 6.5]),
        (("12%", "3 %"), "%", [12, 3]),
        (("₹12,34,567.50", "₹5,000"), "₹", [1234567.5, 5000]),
        (("R$ 1.234,56", "R$ 12,00"), "R$", [1234.56, 12]),
        (("€ 1.234,50", "€ 2"), "€", [1234.5, 2]),
        (("1.2 km", "800 m", "2 km"), "km", [1.2, 0.8, 2]),
        (("90 min", "2 h", "30 min"), "min", [90, 120, 30]),
        (("5 kg", "6 KG"), "kg", [5, 6]),
    ],
)
def test_numbers_with_a_unit(texts, unit, values):
    assert read(*texts) == (unit, pytest.approx(values))


@pytest.mark.parametrize(
    "texts",
    [
        ("5 kg", "3 m"),
        ("2 m", "3 min"),
        ("3 lb", "4 kg"),
        ("C101", "C102"),
        ("Room 5", "Room 6"),
        ("007 kg", "008 kg"),
        ("3rd", "4th"),
        ("10 - 20 kg", "20 - 30 kg"),
        ("12 AM", "3 PM"),
        ("2024 Q1", "2023 Q1"),
        ("5'10\"", "6'1\""),
        ("kg", "kg"),
    ],
)
def test_what_is_no_number_with_one_unit_stays_text(texts):
    assert read(*texts) == ("text", None)


def test_a_few_stray_texts_are_missing():
    unit, values = read(*(f"{n} kg" for n in MANY), "unknown")
    assert unit == "kg" and values[:40] == list(map(float, MANY)) and np.isnan(values[40])


def table(tmp_path, weight, **options):
    lines = [f"{weight(n)},{37 * n % 61}.25" for n in range(1, 61)]
    (tmp_path / "a.csv").write_text("\n".join(["weight,y", *lines]) + "\n")
    return load(tmp_path / "a.csv", **options)


def test_the_unit_is_noted_and_stored(tmp_path):
    data = table(tmp_path, lambda n: f"{n}.5 kg")
    assert data.notes == ("numbers with a unit: 'weight' (kg)",)
    schema = Schema.from_json(data.schema.to_json())
    assert schema.columns[0].unit == "kg" and schema.columns[0].kind == "number"
    (tmp_path / "new.csv").write_text("weight\n1.5 kg\n2500 g\n")
    assert read_new(tmp_path / "new.csv", schema)[0].tolist() == [[1.5], [2.5]]


def test_new_numbers_without_their_unit_are_noted(tmp_path):
    schema = table(tmp_path, lambda n: f"{n}.5 kg").schema
    said = "numbers of {} without a unit were taken to be in that of training: 'weight' (kg)"
    (tmp_path / "new.csv").write_text("weight\n1.5\n2.5\n")
    pyarrow.parquet.write_table(pyarrow.table({"weight": [1.5, 2.5]}), tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        rows = read_rows(tmp_path / name, schema)
        assert rows.x.tolist() == [[1.5], [2.5]] and rows.notes == (said.format(name),)


@pytest.mark.parametrize(("unit", "other"), [("kg", "lb"), ("€", "$"), ("kg", "m")])
def test_new_numbers_in_another_unit_are_an_error(tmp_path, unit, other):
    schema = table(tmp_path, lambda n: f"{n}.5 {unit}").schema
    (tmp_path / "new.csv").write_text(f"weight\n1.5 {other}\n")
    with pytest.raises(TableError, match=rf"holds text \('1.5 .* in row 1\) where training had numbers in {unit}$"):
        read_rows(tmp_path / "new.csv", schema)


def test_symbols_that_only_some_numbers_have_are_noted(tmp_path):
    data = table(tmp_path, lambda n: f"{n}.5{'%' if n % 2 else ''}")
    assert data.notes == ("in detail: 'weight' (some values with %, all read alike)",)
    data = table(tmp_path, lambda n: f"{'$€'[n % 2]}{n}.5")
    assert data.notes == ("in detail: 'weight' (some values with € or $, all read alike)",)


def test_numbers_with_a_unit_as_categories(tmp_path):
    data = table(tmp_path, lambda n: f"{n % 3} h", categories=["weight"])
    assert data.schema.columns[0].categories == ("0", "1", "2")
    (tmp_path / "new.csv").write_text("weight\n120 min\n0 h\n")
    assert read_new(tmp_path / "new.csv", data.schema)[0].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_unit_that_training_did_not_have_is_noted(tmp_path):
    schema = table(tmp_path, lambda n: f"{n}.5").schema
    (tmp_path / "new.csv").write_text("weight\n1.5 kg\n2.5 kg\n")
    rows = read_rows(tmp_path / "new.csv", schema)
    said = "numbers of new.csv have a unit where those of training had none: 'weight' (kg)"
    assert rows.x.tolist() == [[1.5], [2.5]] and rows.notes == (said,)


def of_targets(tmp_path, write):
    lines = [f"{37 * n % 61}.5,{write(n)}" for n in range(1, 61)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    return load(tmp_path / "a.csv")


def test_a_target_with_a_unit(tmp_path):
    data = of_targets(tmp_path, lambda n: f"{n}.25 kg")
    assert data.task == "regression" and data.train.y.min() >= 1.25 and data.notes == ("the target 'y' is in kg",)
    schema = Schema.from_json(data.schema.to_json())
    for text in ("3.25 kg", "3250 g", "3.25", "3,25 kg"):
        (tmp_path / "new.csv").write_text(f"x;y\n1;{text}\n")
        assert read_new(tmp_path / "new.csv", schema)[1].tolist() == [3.25]
    (tmp_path / "new.csv").write_text("x,y\n1,3.25 lb\n")
    with pytest.raises(ValueError, match="the target 'y' of new.csv holds '3.25 lb', which training did not have"):
        read_new(tmp_path / "new.csv", schema)


def test_a_target_in_several_currencies_is_noted(tmp_path):
    data = of_targets(tmp_path, lambda n: f"{'$€'[n % 2]}{n}.25")
    assert data.notes == ("the target 'y' has some values with € or $, all read alike",)


def test_classes_with_a_unit(tmp_path):
    data = of_targets(tmp_path, lambda n: f"{n % 3 + 1} star{'s' if n % 3 else ''}")
    assert data.class_names == ("1", "2", "3")
    (tmp_path / "new.csv").write_text("x,y\n1,3 stars\n1,1 star\n")
    assert read_new(tmp_path / "new.csv", data.schema)[1].tolist() == [2, 0]
