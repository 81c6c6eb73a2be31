import numpy as np
import pytest

from leanbayes.data import Column
from leanbayes.data._arrow import RawColumn
from leanbayes.data._encode import check_finite, check_numeric, encode_columns, fit_column


def texts(*values, name="colour"):
    array = np.empty(len(values), object)
    array[:] = values
    return RawColumn(name, array)


def test_categories_are_those_of_the_training_rows():
    column = texts("red", "blue", "green", None)
    code = fit_column(column, np.array([0, 1, 3]), True, "file")
    assert code == Column("colour", ("blue", "red"))
    number = RawColumn("x", np.array([1.0, 2.0, np.nan, 4.0]))
    x = encode_columns([number, column], [Column("x"), code], 4)
    np.testing.assert_array_equal(x, [[1, 0, 1], [2, 1, 0], [np.nan, 0, 0], [4, 0, 0]])


def test_numbers_can_be_categories():
    column = RawColumn("zone", np.array([3.0, 1.0, 2.5, np.nan]))
    assert fit_column(column, np.arange(4), True, "file").categories == ("1", "2.5", "3")


@pytest.mark.parametrize("values", [[None, None], [str(i) for i in range(1001)]])
def test_what_is_no_category(values):
    with pytest.raises(ValueError, match=r"which are no categories; pass drop=\['colour'\]"):
        fit_column(texts(*values), np.arange(len(values)), True, "file")


def test_text_is_named_with_its_column_and_row():
    message = (
        r"column 'colour' of file holds text \('red' in row 3\); pass categories=\['colour'\] .* drop=\['colour'\]"
    )
    with pytest.raises(ValueError, match=message):
        check_numeric(texts("1.5", None, "red"), "file")
    check_numeric(RawColumn("x", np.zeros(3)), "file")


@pytest.mark.parametrize("values", [("1", "2"), (None,)])
def test_text_that_looks_like_numbers_is_still_text(values):
    with pytest.raises(ValueError, match="holds text"):
        check_numeric(texts(*values), "file")


def test_infinite_numbers():
    with pytest.raises(ValueError, match="column 'x' of file holds an infinite number in row 2"):
        check_finite([texts("a"), RawColumn("x", np.array([0.0, np.inf]))], "file")
