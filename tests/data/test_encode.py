import numpy as np
import pytest

from leanbayes.data import Column
from leanbayes.data._columns import RawColumn
from leanbayes.data._encode import encode_columns, fit_column, infinite_row, top_categories, unseen


def texts(*values, name="colour"):
    array = np.empty(len(values), object)
    array[:] = values
    return RawColumn(name, array)


def test_categories_are_those_of_the_training_rows():
    column = texts("red", "blue", "green", None)
    code = fit_column(column, np.array([0, 1, 3]))
    assert code == Column("colour", ("blue", "red"))
    number = RawColumn("x", np.array([1.0, 2.0, np.nan, 4.0]))
    x = encode_columns([number, column], [Column("x"), code], 4)
    np.testing.assert_array_equal(x, [[1, 0, 1], [2, 1, 0], [np.nan, 0, 0], [4, 0, 0]])
    assert unseen(column, code) == ["green"] and unseen(number, Column("x")) == []


def test_gaps_get_an_input_where_training_has_some():
    column, number = texts("red", None, "blue"), RawColumn("x", np.array([1.0, np.nan, 3.0]))
    for rows, indicator in (([0, 1], True), ([0, 2], False)):
        codes = [fit_column(each, np.array(rows), gaps=True) for each in (column, number)]
        assert [code.indicator for code in codes] == [indicator] * 2
    codes = [fit_column(each, np.arange(3), gaps=True) for each in (column, number)]
    x = encode_columns([column, number], codes, 3)
    np.testing.assert_array_equal(x, [[0, 1, 0, 1, 0], [0, 0, 1, np.nan, 1], [1, 0, 0, 3, 0]])
    assert [code.width for code in codes] == [3, 2] and codes[0].scaled == (False, False, False)


def test_numbers_can_be_categories():
    column = RawColumn("zone", np.array([3.0, 1.0, 2.5, np.nan]))
    assert fit_column(column, np.arange(4), category=True).categories == ("1", "2.5", "3")


def test_the_most_frequent_categories():
    column = texts("b", "c", "a", "c", "b", "d", None)
    assert top_categories(column, np.arange(7), 3) == {"b": 2, "c": 2, "a": 1}


def test_infinite_numbers():
    assert infinite_row(texts("a")) is None and infinite_row(RawColumn("x", np.array([0.0, 1.0]))) is None
    assert infinite_row(RawColumn("x", np.array([0.0, np.inf]))) == 1


@pytest.mark.parametrize(
    "column",
    [
        Column("x", indicator=True, format="1.234,5", others=("unknown",)),
        Column("colour", ("blue", "red")),
        Column("when", (), "date", "%d.%m.%Y", (), True, ("days", "week (sine)"), 1.5e9),
        Column("yes", kind="boolean", format="ja/nein"),
    ],
)
def test_columns_survive_json(column):
    assert Column.from_json(column.to_json()) == column
    assert len(column.scaled) == column.width == len(set(column.features))
