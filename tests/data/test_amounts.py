"""Numbers with more around them than a unit."""

import datetime

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from leanbayes.data import Schema, TableError, load, read_rows
from leanbayes.data._formats import find_format, read_as

MANY = [f"{n / 10}" for n in range(1, 20)]


def read(*texts):
    """What a column is read as: the kind, the unit and the values."""
    column = pyarrow.chunked_array([list(texts)])
    form = find_format(column)
    if form.kind == "text":
        return "text"
    values, wrong = read_as(column, form)
    assert not wrong.any()
    return form.kind, form.unit, values.tolist()


@pytest.mark.parametrize(
    ("texts", "unit", "values"),
    [
        (("€110.5M", "€300K", "€0"), "€", [110.5e6, 3e5, 0]),
        (("$5m", "$300k", "$1.2bn"), "$", [5e6, 3e5, 1.2e9]),  # beside a currency, m is no metre
        (("$5M", "$6M"), "$", [5e6, 6e6]),
        (("-€1.5M", "€2M", "€-3K"), "€", [-1.5e6, 2e6, -3e3]),
        (("($1.2M)", "$3.4M"), "$", [-1.2e6, 3.4e6]),
        (("5M USD", "1.2 bn USD"), "USD", [5e6, 1.2e9]),
        (("1,2 Mio. €", "300 Tsd. €", "2 Mrd €"), "€", [1.2e6, 3e5, 2e9]),
        (("1.234,5 Mio €", "2,5 Mio €"), "€", [1234.5e6, 2.5e6]),
        (("120 k€", "1.5 M€"), "€", [120e3, 1.5e6]),
        (("3 million", "1.5 billion", "20 thousand"), "", [3e6, 1.5e9, 2e4]),
        (("1.2k", "900", "3M"), "", [1200, 900, 3e6]),
        (("1.2k", "3.4m"), "", [1200, 3.4e6]),
        (("1.2B", "340M"), "", [1.2e9, 340e6]),
        (("1.2M", "300K", *(f"{n}K" for n in range(40)), "Free"), "", [1.2e6, 3e5, *(n * 1e3 for n in range(40))]),
        (("$3,400", "$(1,200)"), "$", [3400, -1200]),
        (("3.4e5 USD", "1.2e4 USD"), "USD", [3.4e5, 1.2e4]),
        (("5 MB", "7 MB", "300 KB", "1.5 GB"), "MB", [5, 7, 0.3, 1500]),
    ],
)
def test_multiples(texts, unit, values):
    kind, found, numbers = read(*texts)
    assert (kind, found) == ("number", unit)
    assert [number for number in numbers if number == number] == pytest.approx(values)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("5m", "8m"), ("number", "m", [5, 8])),
        (("5M", "8M"), ("number", "M", [5, 8])),
        (("300 K", "290 K"), ("number", "K", [300, 290])),
        (("512B", "1.2K", "3.4M"), "text"),  # bytes, or billions?
        (("5m", "900"), "text"),
        (("5 M", "900"), "text"),
        (("$5M", "5m"), "text"),
        (("31:28", "30:26"), "text"),  # the results of a game
        (("<50K", ">50K", "<50K"), "text"),
        (("<18", "18-65", ">65"), "text"),
        (("14:30", "15:10"), ("date", "", [52200, 54600])),
    ],
)
def test_what_could_mean_something_else_is_not_guessed(texts, expected):
    assert read(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (("2h 30m", "45m", "1h"), [9000, 2700, 3600]),
        (("2h30m", "1 h 5 min", "3 hours, 2 minutes"), [9000, 3900, 10920]),
        (("1d 2h", "5h"), [93600, 18000]),
        (("2 min 3.5 s", "10 s"), [123.5, 10]),
        (("26:15:00", "3:45:12"), [94500, 13512]),
        (("1:23.45", "59:01.5"), [83.45, 3541.5]),
    ],
)
def test_durations_are_seconds(texts, values):
    kind, unit, numbers = read(*texts)
    assert (kind, unit, numbers) == ("number", "s", pytest.approx(values))


@pytest.mark.parametrize(
    ("texts", "unit", "values"),
    [
        (("<0.05", *MANY), "", [0.05, 0.1]),
        (("<0.05 mg/L", *(f"{text} mg/L" for text in MANY)), "mg/L", [0.05, 0.1]),
        (("> 1,000", *(f"{n},5" for n in range(20))), "", [1.0, 0.5]),
    ],
)
def test_limits_are_read_as_what_they_name(texts, unit, values):
    kind, found, numbers = read(*texts)
    assert (kind, found, numbers[:2]) == ("number", unit, pytest.approx(values))


def table(path, rows, head):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_a_table_of_amounts_from_training_to_new_rows(tmp_path):
    rows = [(f"€{n}M" if n % 2 else f"€{n}00K", f"<{n / 50}" if n < 5 else n / 10, n % 3) for n in range(1, 61)]
    data = load(table(tmp_path / "a.csv", rows, "value,crp,y"), target="y")
    column, limits = data.schema.columns
    assert (column.kind, column.unit, column.extras, limits.extras) == ("number", "€", ("multiples",), ("limits",))
    assert Schema.from_json(data.schema.to_json()) == data.schema
    (note,) = [note for note in data.notes if note.startswith("in detail")]
    value = "'value' ('€1M' read as 1,000,000, '€200K' read as 200,000)"
    assert note == f"in detail: {value}, 'crp' ('<0.02' read as 0.02)"
    # Written as in training, each by itself, without a multiple, and as a number.
    new = read_rows(table(tmp_path / "b.csv", [("€2.5M", "<1"), ("€70", 2), (80, 3)], "value,crp"), data.schema)
    assert new.x.tolist() == [[2.5e6, 1], [70, 2], [80, 3]]
    with pytest.raises(TableError, match="holds text"):
        read_rows(table(tmp_path / "c.csv", [("€2.5X", 1)], "value,crp"), data.schema)


def test_a_target_of_amounts(tmp_path):
    rows = [(n * 7 % 13, f"€{n}M" if n % 2 else f"€{n}00K") for n in range(1, 61)]
    data = load(table(tmp_path / "a.csv", rows, "x,price"))
    assert data.task == "regression" and data.schema.target_unit == "€"
    assert sorted(data.train.y.tolist() + data.valid.y.tolist() + data.test.y.tolist())[-1] == 59e6
    assert "values of the target 'price': '€1M' read as 1,000,000, '€200K' read as 200,000" in data.notes
    new = read_rows(table(tmp_path / "b.csv", [(1, "€1.5M"), (2, "€20K")], "x,price"), data.schema)
    assert new.y.tolist() == [1.5e6, 2e4]


SECONDS = [1_700_000_000 + 1000 * n for n in range(60)]


@pytest.mark.parametrize(("step", "form"), [(1, "Unix seconds"), (1000, "Unix milliseconds")])
def test_unix_times_are_dates(tmp_path, step, form):
    rows = [(second * step, n % 2) for n, second in enumerate(SECONDS)]
    data = load(table(tmp_path / "a.csv", rows, "createdAt,y"), target="y", order_by="createdAt")
    (column,) = data.schema.columns
    assert (column.kind, column.format, column.origin) == ("date", form, SECONDS[0])
    assert any("'createdAt' (" + form + ")" in note for note in data.notes)
    text = datetime.datetime.fromtimestamp(SECONDS[5], datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    pyarrow.parquet.write_table(pyarrow.table({"createdAt": [SECONDS[5] * step]}), tmp_path / "c.parquet")
    files = [table(tmp_path / "b.csv", [(SECONDS[5] * step,)], "createdAt"), tmp_path / "c.parquet"]
    files.append(table(tmp_path / "d.csv", [(text,)], "createdAt"))
    found = [read_rows(file, data.schema).x for file in files]
    assert all(np.allclose(x, found[0]) for x in found)
    assert found[0][0, 0] == pytest.approx(5000 / 86400)


@pytest.mark.parametrize("name", ["amount", "phone", "seconds_used"])
def test_large_numbers_that_are_no_times_stay_numbers(tmp_path, name):
    rows = [(second, n % 2) for n, second in enumerate(SECONDS)]
    assert load(table(tmp_path / "a.csv", rows, f"{name},y"), target="y").schema.columns[0].kind == "number"


def test_times_may_be_numbers_if_you_say_so(tmp_path):
    rows = [(second, n % 2) for n, second in enumerate(SECONDS)]
    data = load(table(tmp_path / "a.csv", rows, "timestamp,y"), target="y", numbers=["timestamp"])
    assert data.schema.columns[0].kind == "number"


def test_whole_numbers_are_not_said_to_have_a_decimal_comma(tmp_path):
    rows = "".join(f"{n},5;{n % 7};{n}h 5m;{n % 2}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"size;count;stay;y\n{rows}")
    notes = load(tmp_path / "a.csv", target="y").notes
    assert [note for note in notes if "comma" in note] == ["numbers with a decimal comma: 'size'"]
