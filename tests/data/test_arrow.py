import gzip

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from leanbayes.data._arrow import read_columns


def read(path, **options):
    return {column.name: column for column in read_columns(path, **options)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found(path, separator):
    path.write_text(separator.join(["a", "b", "c"]) + "\n" + separator.join(["1", "2.5", "text"]) + "\n")
    columns = read(path)
    assert list(columns) == ["a", "b", "c"]
    assert columns["a"].whole and columns["a"].values.tolist() == [1.0]
    assert not columns["b"].whole and columns["b"].values.tolist() == [2.5]
    assert columns["c"].is_text and columns["c"].values.tolist() == ["text"]


def test_quotes_byte_order_mark_and_carriage_returns(path):
    path.write_bytes(b'\xef\xbb\xbfa,"the, name"\r\n1,"x ""y""\r\nz"\r\n')
    columns = read(path)
    assert columns["the, name"].values.tolist() == ['x "y"\r\nz']


def test_missing_values(path):
    path.write_text("a,b,c\n1,,x\nNA,2,\n3,nan,?\n")
    columns = read(path, na=["?"])
    assert columns["a"].missing.tolist() == [False, True, False] and columns["a"].whole
    assert columns["b"].missing.tolist() == [True, False, True]
    assert columns["c"].values.tolist() == ["x", None, None]


def test_a_column_without_values_is_a_number(path):
    path.write_text("a,b\n1,\n2,\n")
    assert np.isnan(read(path)["b"].values).all()


def test_true_and_false_are_one_and_zero(path):
    path.write_text("a\ntrue\nfalse\n")
    column = read(path)["a"]
    assert column.values.tolist() == [1.0, 0.0] and column.whole


def test_dates_are_text(path):
    path.write_text("a\n2024-01-01\n2024-01-02\n")
    assert read(path)["a"].is_text


def test_compressed(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb,c\n1\t2\n"))
    assert list(read(path)) == ["a", "b,c"]


def test_without_names(path):
    path.write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match="first line of .*table.csv holds numbers where names .* pass header=False"):
        read(path)
    columns = read(path, header=False)
    assert list(columns) == ["column 1", "column 2"] and columns["column 2"].values.tolist() == [2.0, 4.0]


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = {"x": [1.5, None], "k": pyarrow.array(["u", "v"]).dictionary_encode(), "d": pyarrow.array([1, 2])}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    columns = read(path)
    assert columns["x"].missing.tolist() == [False, True]
    assert columns["k"].values.tolist() == ["u", "v"] and columns["d"].whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty or begins with an empty line"),
        (b"\n1,2\n", "is empty or begins with an empty line"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2,3\n", "cannot be read as a table: CSV parse error"),
        (b"a,a\n1,2\n", "has two columns named 'a'"),
        (b"\xff\xfea,b\n1,2\n", "cannot be read as a table"),
    ],
)
def test_files_that_are_no_tables(path, content, message):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_truncated_gzip(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n" * 1000)[:-20])
    with pytest.raises(ValueError, match="a.csv.gz cannot be read as a table"):
        read(tmp_path / "a.csv.gz")


def test_parquet_that_is_none(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="a.parquet cannot be read as a table"):
        read(tmp_path / "a.parquet")
