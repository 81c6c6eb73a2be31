import json

import numpy as np
import pytest

from leanbayes.compare.train import train_and_valid_counts
from leanbayes.data import TableError, generate, load
from leanbayes.data._dataset import Origin

ROWS = 100
DAYS = np.datetime64("2024-01-01") + np.arange(ROWS)


def table(tmp_path, days, y=None, **options):
    y = [f"{n}.5" for n in range(ROWS)] if y is None else y
    lines = [f"{day},{37 * n % 101},{value}" for n, (day, value) in enumerate(zip(days, y))]
    (tmp_path / "a.csv").write_text("\n".join(["day,x,y", *lines]) + "\n")
    return load(tmp_path / "a.csv", target="y", **options)


@pytest.mark.parametrize("options", [{}, {"drop": ["day"]}], ids=["an input", "left out"])
def test_the_last_rows_are_for_the_test(tmp_path, options):
    mixed = np.random.RandomState(0).permutation(ROWS)
    read = table(tmp_path, DAYS[mixed], [f"{n}.5" for n in mixed], order_by="day", **options)
    parts = [(part.y - 0.5).tolist() for part in (read.train, read.valid, read.test)]
    assert parts == [list(range(64)), list(range(64, 80)), list(range(80, 100))]
    assert "in the order of 'day': the last rows are for testing, those before them for validation" in read.notes
    assert read.shape == ((1,) if options else (6,))


def test_no_rows_from_before_join_the_validation_part(tmp_path):
    # There are enough of the last ones, so that training does not add others at random.
    assert train_and_valid_counts(table(tmp_path, DAYS, order_by="day")) == (64, 16)
    assert len(table(tmp_path, DAYS, order_by="day", valid=0).valid) == 0


def test_by_a_number(tmp_path):
    read = table(tmp_path, DAYS, order_by="x")
    x = [part.x[:, -1] for part in (read.train, read.valid, read.test)]
    assert x[0].max() < x[1].min() and x[1].max() < x[2].min()


def test_rows_without_a_target_do_not_count(tmp_path):
    y = [f"{n}.5" if n < 90 else "" for n in range(ROWS)]
    read = table(tmp_path, DAYS, y, order_by="day")
    assert len(read.test) == 18 and read.test.y.tolist() == [n + 0.5 for n in range(72, 90)]


def test_it_is_part_of_how_the_data_were_read(tmp_path):
    read = table(tmp_path, DAYS, order_by="day")
    options = Origin(**json.loads(json.dumps(vars(read.origin)))).options
    assert options["order_by"] == "day"
    assert (load(tmp_path / "a.csv", **options).test.x == read.test.x).all()


@pytest.mark.parametrize(
    ("column", "first", "message"),
    [
        ("dya", "2024-01-01", "a.csv has no column 'dya'; did you mean 'day'"),
        ("day", "", "column 'day' of a.csv misses 1 values, so that these rows have no order"),
        ("name", "2024-01-01", "column 'name' of a.csv holds text; rows are ordered by dates or numbers"),
    ],
)
def test_columns_that_give_no_order(tmp_path, column, first, message):
    lines = [f"{day},{'ab'[n % 2]},{n}.5" for n, day in enumerate([first, *DAYS[1:]])]
    (tmp_path / "a.csv").write_text("\n".join(["day,name,y", *lines]) + "\n")
    with pytest.raises(TableError, match=message):
        load(tmp_path / "a.csv", order_by=column)


@pytest.mark.parametrize(("days", "noted"), [(DAYS, True), (DAYS[::-1], True), (np.roll(DAYS, 1), False)])
def test_rows_in_the_order_of_time_are_noted(tmp_path, days, noted):
    said = "the rows are in the order of 'day', and test rows were drawn among all of them"
    assert any(note.startswith(said) for note in table(tmp_path, days).notes) == noted


def test_times_of_day_and_a_few_dates_are_no_series(tmp_path):
    times = [f"{n // 60:02d}:{n % 60:02d}" for n in range(ROWS)]
    for days in (times, np.repeat(DAYS[:10], 10)):
        assert "in the order of" not in " ".join(table(tmp_path, days).notes)


def test_other_data_have_no_such_column(tmp_path):
    with pytest.raises(ValueError, match="has no option 'order_by'"):
        load(generate.write_npz(tmp_path / "a.npz"), order_by="day")
