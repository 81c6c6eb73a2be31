import datetime
import gzip
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from leanbayes.data._arrow import read_cells
from leanbayes.data._columns import infer_columns
from leanbayes.data._formats import NUMBERS, Format
from leanbayes.data._table_errors import TableError


def read(path, **options):
    return {column.name: column for column in infer_columns(read_cells(path, **options))}


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


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1,5", "-2,25", "3"], [1.5, -2.25, 3.0]),
        (["1.234,5", "999", "1.000.000,25"], [1234.5, 999.0, 1000000.25]),
        (["1,234.5", "2,000"], [1234.5, 2000.0]),
        (["1 234,5", "7,25"], [1234.5, 7.25]),
        (["1'234.50", "12.00"], [1234.5, 12.0]),
        (["12 %", "7,5 %"], [12.0, 7.5]),
        (["€ 1.200,50", "3,10 €"], [1200.5, 3.1]),
        (["$1,200.50", "-$3.10"], [1200.5, -3.1]),
        (["(1,200.50)", "3.10", "($5)"], [-1200.5, 3.1, -5.0]),
        (["\u22121.5", "2.5"], [-1.5, 2.5]),
        (["1e3", "2.5E-1", ".5", "3."], [1000.0, 0.25, 0.5, 3.0]),
    ],
)
def test_numbers_as_they_are_written(path, texts, values):
    path.write_text("a|b\n" + "".join(f"{text}|x\n" for text in texts))
    assert read(path)["a"].values.tolist() == values


def test_one_column_decides_for_the_others(path):
    # A thousand and more in a file with decimal commas, a little more than one in others.
    path.write_text("a;b\n1.234;0,5\n2.345;1,5\n")
    assert read(path)["a"].values.tolist() == [1234.0, 2345.0]
    path.write_text("a;b\n1.234;0.5\n2.345;1.5\n")
    assert read(path)["a"].values.tolist() == [1.234, 2.345]
    path.write_text("a;b\n1,234;5\n2,345;6\n")
    assert read(path)["a"].values.tolist() == [1.234, 2.345]
    path.write_text('a,b\n"1,234",5\n"2,345",6\n')
    assert read(path)["a"].values.tolist() == [1234.0, 2345.0]


@pytest.mark.parametrize("texts", [["007", "123"], ["01067", "80331"], ["1-2", "3-4"], ["1.2.3", "4.5.6"]])
def test_codes_are_no_numbers(path, texts):
    path.write_text("a,b\n" + "".join(f"{text},1\n" for text in texts))
    assert read(path)["a"].is_text and read(path)["a"].values.tolist() == texts


@pytest.mark.parametrize("pair", ["yes/no", "Y/N", "True/False", "ja/nein", "wahr/falsch", "oui/non"])
def test_yes_and_no(path, pair):
    yes, no = pair.split("/")
    path.write_text(f"a,b\n{yes},1\n{no},2\n,3\n")
    column = read(path)["a"]
    assert column.format.kind == "boolean" and column.values[:2].tolist() == [1.0, 0.0] and np.isnan(column.values[2])
    assert column.texts.tolist() == [yes, no, None]


@pytest.mark.parametrize(
    "pattern",
    [
        "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d.%m.%y", "%d %b %Y", "%B %d, %Y", "%d-%b-%Y",
        "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ",
        "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S%p", "%Y-%m",
    ],
)  # fmt: skip
def test_dates_are_read_as_they_are_written(path, pattern):
    random = np.random.RandomState(0)
    seconds = random.randint(0, 1_700_000_000, size=50)
    stamps = [datetime.datetime.fromtimestamp(int(value), datetime.UTC) for value in seconds]
    path.write_text("a|b\n" + "".join(f"{stamp.strftime(pattern)}|1\n" for stamp in stamps))
    column = read(path)["a"]
    expected = [_as_written(stamp, pattern).timestamp() for stamp in stamps]
    assert column.format.kind == "date" and column.values.tolist() == expected


def _as_written(stamp, pattern):
    return datetime.datetime.strptime(stamp.strftime(pattern), pattern).replace(tzinfo=datetime.UTC)


def test_days_and_months_that_could_be_either(path):
    path.write_text("a,b\n01/02/2024,1\n03/04/2024,2\n")
    american = read(path)["a"]
    assert american.format.pattern == "%m/%d/%Y" and american.format.either
    path.write_text("a;b\n01/02/2024;1,5\n03/04/2024;2,5\n")
    assert read(path)["a"].format.pattern == "%d/%m/%Y"
    path.write_text("a,b\n01/02/2024,1\n13/04/2024,2\n")
    assert read(path)["a"].format == Format("date", "%d/%m/%Y")


def test_times_without_a_date(path):
    path.write_text("a,b\n14:30,1\n00:00,2\n")
    assert read(path)["a"].values.tolist() == [14.5 * 3600, 0.0]
    path.write_text("a,b\n2:30 PM,1\n12:00 am,2\n")
    assert read(path)["a"].values.tolist() == [14.5 * 3600, 0.0]


def test_dates_written_in_several_ways(path):
    days = [datetime.datetime(2024, 1 + i % 12, 1 + i % 28, tzinfo=datetime.UTC) for i in range(60)]
    ways = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d %b %Y")
    path.write_text("a|b\n" + "".join(f"{day.strftime(ways[i % 4])}|1\n" for i, day in enumerate(days)))
    column = read(path)["a"]
    assert column.values.tolist() == [day.timestamp() for day in days]
    assert set(column.format.patterns) == {"ISO 8601", *ways[1:]} and not column.format.either
    # What could be either is read in one of the two ways, and said to be.
    path.write_text("a,b\n2024-03-05,1\n03/04/2024,2\n")
    column = read(path)["a"]
    assert set(column.format.patterns) == {"ISO 8601", "%m/%d/%Y"} and column.format.either


def test_days_and_months_are_not_read_in_both_orders(path):
    path.write_text("a,b\n13/04/2024,1\n04/13/2024,2\n")
    assert read(path)["a"].is_text


def test_a_few_texts_among_dates_are_missing(path):
    path.write_text("a,b\n" + "2024-03-05,1\n" * 39 + "unknown,1\n")
    column = read(path)["a"]
    assert column.format == Format("date", "ISO 8601", ("unknown",)) and column.missing.sum() == 1
    path.write_text("a,b\n" + "2024-03-05,1\n" * 9 + "unknown,1\n")
    assert read(path)["a"].is_text


def test_dates_that_are_none(path):
    path.write_text("a,b\n2024-13-01,1\n2024-02-31,2\n")
    assert read(path)["a"].is_text


@pytest.mark.parametrize(
    ("impossible", "written"),
    [
        ("2024-2-31", "%Y-%m-%d"), ("2024-02-31", "%Y-%m-%d"), ("2023/2/29", "%Y/%m/%d"), ("31.4.2024", "%d.%m.%Y"),
        ("31.04.24", "%d.%m.%y"), ("2/30/2024", "%m/%d/%Y"), ("30/2/2024", "%d/%m/%Y"), ("31 Jun 2024", "%d %b %Y"),
        ("June 31, 2024", "%B %d, %Y"), ("31-11-2024", "%d-%m-%Y"), ("29.2.1900 10:30", "%d.%m.%Y %H:%M"),
        ("2/30/2024 2:30 PM", "%m/%d/%Y %I:%M %p"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("padded", [False, True])
def test_impossible_days_do_not_become_other_dates(path, impossible, written, padded):
    days = [datetime.datetime(2024, 1 + i % 12, 1 + i % 28, 10, 30, tzinfo=datetime.UTC) for i in range(39)]
    texts = [day.strftime(written) for day in days]
    if not padded:
        texts = [re.sub(r"\b0(?=\d)", "", text) for text in texts]
    path.write_text("a|b\n" + "".join(f"{text}|1\n" for text in [impossible, *texts]))
    column = read(path)["a"]
    assert column.format.kind == "date" and column.format.others == (impossible,)
    assert column.missing.tolist() == [True] + [False] * 39
    expected = [datetime.datetime.strptime(text, written).replace(tzinfo=datetime.UTC).timestamp() for text in texts]
    assert column.values[1:].tolist() == expected


def test_the_last_days_of_months_are_dates(path):
    first = datetime.datetime(1999, 1, 1, tzinfo=datetime.UTC)
    days = [first + datetime.timedelta(days=i) for i in range(1500)]
    path.write_text("a,b\n" + "".join(f"{day.day}.{day.month}.{day.year},1\n" for day in days))
    assert read(path)["a"].values.tolist() == [day.timestamp() for day in days]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_encodings_are_found(path, encoding):
    path.write_bytes("Größe,Straße\n1,Mühlweg\n".encode(encoding))
    columns = read(path)
    assert list(columns) == ["Größe", "Straße"] and columns["Straße"].values.tolist() == ["Mühlweg"]


def test_separators_are_told_from_commas_in_numbers_and_names(path):
    path.write_text("Preis, netto;Menge\n1,5;2\n2,5;3\n")
    assert list(read(path)) == ["Preis, netto", "Menge"]
    path.write_text('a,b\n"x;y;z",1\n"u;v",2\n')
    assert list(read(path)) == ["a", "b"]
    path.write_text("sep=|\na|b\n1|2\n")
    assert read(path)["b"].values.tolist() == [2.0]


def test_names_that_are_missing_or_equal(path):
    path.write_text(",a, a ,\n1,2,3,4\n")
    cells = read_cells(path)
    assert list(cells.columns) == ["column 1", "a", "a (2)", "column 4"]
    assert cells.notes == ("two columns are named 'a'; the later one is called 'a (2)'",)


def test_names_with_line_breaks(path):
    path.write_text('"first\nname",b\n1,2\n')
    assert read(path)["b"].values.tolist() == [2.0] and list(read(path))[0] == "first\nname"


def test_empty_rows_at_the_end_are_none(path):
    path.write_text("a,b\n1,2\n,\n3,4\n,\n,\n")
    assert len(read(path)["a"].values) == 3


def test_what_is_written_is_read(path):
    """Numbers of any size come back as they were, whichever way they are written."""
    random = np.random.RandomState(0)
    for decimals in (0, 1, 2, 5):
        values = np.round(random.standard_normal(200) * 10.0 ** random.randint(0, 7, 200), decimals)
        for name, (decimal, thousands) in NUMBERS.items():
            texts = [
                f"{value:,.{decimals}f}".replace(",", "T").replace(".", decimal).replace("T", thousands)
                for value in values
            ]
            path.write_text("a|b\n" + "".join(f"{text}|0{decimal}5\n" for text in texts))
            assert read(path)["a"].values.tolist() == [float(f"{value:.{decimals}f}") for value in values], name


def test_compressed(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb,c\n1\t2\n"))
    assert list(read(path)) == ["a", "b,c"]


def test_without_names(path):
    path.write_text("1,2\n3,4\n")
    with pytest.raises(
        ValueError, match="first line of .*table.csv holds numbers instead of column names; .* pass header=False"
    ):
        read(path)
    columns = read(path, header=False)
    assert list(columns) == ["column 1", "column 2"] and columns["column 2"].values.tolist() == [2.0, 4.0]


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = {"x": [1.5, None], "k": pyarrow.array(["u", "v"]).dictionary_encode(), "d": pyarrow.array([1, 2])}
    table |= {"when": [datetime.datetime(2024, 5, 1, 12), None], "day": [datetime.date(1970, 1, 2)] * 2}
    table |= {"yes": [True, False], "text": [" 1,5 ", "NA"], "list": [[1], [2]]}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    columns = read(path)
    assert columns["x"].missing.tolist() == [False, True]
    assert columns["k"].values.tolist() == ["u", "v"] and columns["d"].whole
    noon = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC).timestamp()
    assert columns["when"].values[0] == noon and columns["when"].missing.tolist() == [False, True]
    assert columns["day"].values.tolist() == [86400.0] * 2 and columns["day"].format.kind == "date"
    assert columns["yes"].texts.tolist() == ["true", "false"] and columns["yes"].values.tolist() == [1.0, 0.0]
    assert columns["text"].values[0] == 1.5 and columns["text"].missing.tolist() == [False, True]
    assert columns["list"].is_text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; its first line should name the columns"),
        (b"\r\n \n", "is empty; its first line should name the columns"),
        (b"\n1,2\n", "holds numbers instead of column names"),
        (b"Sales,,\n,,\na,b,c\n1,2,3\n", "its first line, 'Sales,,', leaves most columns without a name; remove what"),
        (b"a,b\n", "has no rows"),
        (b"a,b\n1,2,3\n", "cannot be read as a table: there are 2 columns, but line 2 has 3 cells"),
        (b"\xff\xfea,b\n1,2\nx", "cannot be read as a table"),
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n1,2,3\n4\n", "there are 2 columns, but line 3 has 3 cells, line 4 has 1 cell; mend"),
        ('a,b\n"x\ny",2\n1,2,3\n', "line 4 has 3 cells"),
        (
            "a,b\n" + "1,2,3\n" * 4 + "1,2\n",
            "line 2 has 3 cells, line 3 has 3 cells, line 4 has 3 cells and so on, 4 li",
        ),
        ("Sales of 2024\na,b\n1,2\n", "first line, 'Sales of 2024', is a single name, and line 2 has 2 cells; remove"),
        ('a,b\n1,2\n"3,4\n5,6\n', "a quotation mark in line 3 is never closed"),
    ],
)
def test_uneven_lines_are_named(path, content, said):
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(said)):
        read_cells(path)


def test_a_first_line_that_lacks_one_name(path):
    # As R writes row names.
    path.write_text("a,b\nr1,2,3\nr2,4,5\n")
    cells = read_cells(path)
    assert list(cells.columns) == ["column 1", "a", "b"] and "one more cell" in cells.notes[0]
    # A separator at the end of each line but the first.
    path.write_text("a,b\n2,3,\n4,5,\n")
    assert list(read_cells(path).columns) == ["a", "b", "column 3"]


def test_a_file_of_numbers_alone_gets_the_option_that_reads_it(path):
    path.write_text("1,2\n3,4\n")
    with pytest.raises(TableError) as error:
        read_cells(path)
    assert list(read_cells(path, **error.value.fixes).columns) == ["column 1", "column 2"]


def test_empty_lines_above_the_names_are_skipped(path):
    path.write_bytes(b"\r\n\r\nsep=;\r\n\r\na;b\r\n1;2\r\n")
    assert {name: column.to_pylist() for name, column in read_cells(path).columns.items()} == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", True),
        ("39,Private\n50,Public\n38,Private\n", True),
        ("country,2023,2024\nChad,5,6\nMali,7,8\n", False),
        ("1100.5,1101.5,protein\n0.1,0.2,3\n0.2,0.3,4\n", False),
    ],
)
def test_a_first_line_of_data_is_noted(path, content, said):
    path.write_text(content)
    assert any("first line was taken for the names" in note for note in read_cells(path).notes) == said


@pytest.mark.parametrize(
    "text", ["age  size rate\n 1  2.5  3\n10 20.5 30 \n", "age size rate\r\n1 2.5 3\r\n10   20.5   30\r\n"]
)
def test_numbers_with_blanks_between_them(path, text):
    path.write_text(text, newline="")
    found = {name: column.to_pylist() for name, column in read_cells(path).columns.items()}
    assert found == {"age": ["1", "10"], "size": ["2.5", "20.5"], "rate": ["3", "30"]}


def test_a_single_column_of_words_is_not_divided(path):
    path.write_text("full name\nAda Byron\nAlan Turing\n")
    assert list(read_cells(path).columns) == ["full name"]
