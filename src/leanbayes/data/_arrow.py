"""The cells of CSV and Parquet files, through pyarrow: encodings, separators and missing values are found out here."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from leanbayes.data._extras import need
from leanbayes.data._names import is_number, is_title, on_names, title_above
from leanbayes.data._ragged import uneven, with_unnamed
from leanbayes.data._table_errors import TableError

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
# The later one wins where two fit a file equally well: commas also stand in numbers.
_SEPARATORS = ",|;\t"
# Compared without regard to case.
_MISSING = (
    "", "na", "n/a", "n.a.", "n. a.", "nan", "null", "none", "#n/a", "#na", "#nv", "<na>", "nil",
    "k.a.", "k. a.", "-", "--", "?", ".",
)  # fmt: skip
_BYTE_ORDER_MARKS = (
    # Their first half is the mark of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Bytes and lines that separators are looked for in.
_SAMPLE, _LINES = 1 << 16, 50


@dataclass(frozen=True)
class Cells:
    """A file as it stands, before anything is made of its texts.

    Attributes:
        columns: Arrays of pyarrow by name, in the order of the file: trimmed texts, or what a Parquet file has.
        separator: Between the cells of a CSV file, None for Parquet.
        notes: What was done to read it, one sentence each.
    """

    columns: dict[str, Any]
    separator: str | None
    notes: tuple[str, ...] = ()


def read_cells(path: Path, *, separator: str | None = None, header: bool = True, na: Sequence[str] = ()) -> Cells:
    """All cells of a CSV, TSV or Parquet file.

    Args:
        path: The file; CSV may be compressed as ``.gz``, and be of UTF-8, UTF-16 with its mark, or Windows-1252.
        separator: Between the cells of a CSV file; None looks at the first lines.
        header: Whether the first line has the names.
        na: Texts that mean a missing value, besides the usual ones.

    Returns:
        The cells.

    Raises:
        ValueError: If the file is no such table, in one sentence.
    """
    arrow = need("pyarrow", "tables")
    notes: list[str] = []
    try:
        if path.suffix == ".parquet":
            table, separator = need("pyarrow.parquet", "Parquet files").read_table(path), None
        else:
            table, separator = _csv(path, separator, header, notes)
    except arrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from None
    except (UnicodeDecodeError, OSError, EOFError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    missing = arrow.array(sorted({*_MISSING, *(text.strip().lower() for text in na)}))
    names = _distinct(list(table.column_names), notes)
    columns = {name: _trimmed(arrow, column, missing) for name, column in zip(names, table.columns)}
    columns = _without_repeated_names(columns, table.column_names, notes)
    if not columns or not len(next(iter(columns.values()))):
        raise ValueError(f"{path} has no rows; a table with one row per example is needed")
    return Cells(_without_last_rows(columns), separator, tuple(notes))


def _csv(path: Path, separator: str | None, header: bool, notes: list[str]) -> tuple[Any, str]:
    arrow, reader = need("pyarrow", "tables"), need("pyarrow.csv", "CSV files")
    data = in_utf8(path, notes)
    sample = data[:_SAMPLE].decode("utf-8", errors="ignore")
    skipped = 0
    while sample:
        first, rest = (*sample.split("\n", 1), "")[:2]
        if first.strip():
            # The line by which spreadsheets are told the separator.
            if not (first.strip().lower().startswith("sep=") and len(first.strip()) == 5):
                break
            separator = separator or first.strip()[4]
        sample, skipped = rest, skipped + 1
    if not sample:
        raise ValueError(f"{path} is empty; its first line should name the columns")
    separator = separator or _guess_separator(path, sample, complete=len(data) <= _SAMPLE)
    if separator == " ":
        data, sample = _with_single_blanks(data), _with_single_blanks(sample.encode()).decode()
    lines = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
    names = [cell.strip() for cell in next(lines)]
    if header and all(map(is_number, names)):
        raise TableError(
            f"the first line of {path} holds numbers instead of column names; "
            "add a line of names, or pass header=False",
            {"header": False},
        )
    if header:
        skipped += lines.line_num  # more than one where a name has a line break
        rows = [row for row in islice(lines, _LINES) if row]
        rows = rows if len(data) <= _SAMPLE else rows[:-1]
        if is_title(names, rows):
            raise ValueError(title_above(path.name, separator.join(names)))
        names = with_unnamed(names, rows, notes)
        notes += on_names(names, rows)
    # pyarrow takes columns of one name, but not one type for each.
    places = [str(number) for number in range(len(names))]
    try:
        table = reader.read_csv(
            arrow.BufferReader(data),
            read_options=reader.ReadOptions(column_names=places, skip_rows=skipped),
            parse_options=reader.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=reader.ConvertOptions(
                column_types=dict.fromkeys(places, arrow.string()), strings_can_be_null=False
            ),
        )
    except arrow.ArrowInvalid as error:
        raise ValueError(uneven(path.name, data.decode(), separator, len(names), skipped) or str(error)) from None
    return table.rename_columns(names if header else [""] * len(names)), separator


def in_utf8(path: Path, notes: list[str]) -> bytes:
    """A file's content in UTF-8 without a byte order mark; a note says where the encoding is a guess."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(encoding).encode()
    # In UTF-16 without its mark, every other byte of a Latin letter is 0.
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = data[start:_SAMPLE:2]
        if half.count(0) > len(half) // 2:
            notes.append("the file was read as UTF-16, although it has no byte-order mark")
            return data.decode(encoding).encode()
    try:
        data.decode("utf-8")
        return data
    except UnicodeDecodeError:
        pass
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    notes.append("the file is not in UTF-8, and was read as Windows-1252 (Latin-1)")
    return text.encode()


def _guess_separator(path: Path, sample: str, complete: bool) -> str:
    """The separator that gives the first lines as many cells as the names, and the most of them."""
    if ".tsv" in path.suffixes[-2:]:
        return "\t"
    best, found = (0.0, 0), ","
    for separator in _SEPARATORS:
        rows = list(islice(csv.reader(io.StringIO(sample, newline=""), delimiter=separator), _LINES))
        if len(rows) < _LINES and not complete:
            rows = rows[:-1]  # cut off by the end of the sample
        widths = [len(row) for row in rows if row]
        if len(widths) and widths[0] > 1:
            score = (round(statistics.fmean(width == widths[0] for width in widths), 2), widths[0])
            if score >= best:
                best, found = score, separator
    return " " if not best[1] and _is_blank_separated(sample, complete) else found


def _is_blank_separated(sample: str, complete: bool) -> bool:
    """Whether lines are of as many numbers each, with blanks between them."""
    rows = [line.split() for line in sample.splitlines()[:_LINES] if line.strip()]
    alike = rows if complete else rows[:-1]  # cut off by the end of the sample
    cells = [cell for row in alike[1:] for cell in row]
    numbers = sum(map(is_number, cells))
    return len(cells) > 1 and len({len(row) for row in alike}) == 1 < len(alike[0]) and 2 * numbers > len(cells)


def _with_single_blanks(data: bytes) -> bytes:
    return re.sub(rb"(?m)^ +| +(?=\r?$)", b"", re.sub(rb" {2,}", b" ", data))


def _distinct(names: list[str], notes: list[str]) -> list[str]:
    """Names of which none is empty and no two are equal."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        name = name.strip() or f"column {number}"
        fresh, count = name, 1
        while fresh in found:
            count += 1
            fresh = f"{name} ({count})"
        if fresh != name:
            notes.append(f"two columns are named {name!r}; the later one is called {fresh!r}")
        found.append(fresh)
    return found


def _trimmed(arrow: Any, column: Any, missing: Any) -> Any:
    """Texts without blanks around them and null for those that stand for a missing value; the rest as it is."""
    compute, types = need("pyarrow.compute", "tables"), arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return column
    column = compute.utf8_trim_whitespace(column.cast(arrow.string()))
    return compute.if_else(compute.is_in(compute.utf8_lower(column), value_set=missing), None, column)


def _without_repeated_names(columns: dict[str, Any], names: list[str], notes: list[str]) -> dict[str, Any]:
    """Without the rows that have the names of all columns again, as where files were joined."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    if not all(map(arrow.types.is_string, (column.type for column in columns.values()))) or not all(names):
        return columns
    again = None
    for name, column in zip(names, columns.values()):
        same = compute.fill_null(compute.equal(column, name.strip()), False)
        again = same if again is None else compute.and_(again, same)
        if not compute.any(again).as_py():
            return columns
    count = compute.sum(again).as_py()
    lines = "line that repeats" if count == 1 else "lines that repeat"
    notes.append(f"{count} {lines} the names of the columns {'was' if count == 1 else 'were'} left out")
    return {name: column.filter(compute.invert(again)) for name, column in columns.items()}


def _without_last_rows(columns: dict[str, Any]) -> dict[str, Any]:
    """Without the empty rows at the end, of which spreadsheets write many."""
    compute = need("pyarrow.compute", "tables")
    filled = [compute.index(compute.is_valid(column)[::-1], True).as_py() for column in columns.values()]
    empty = min((place for place in filled if place >= 0), default=0)
    return {name: column.slice(0, len(column) - empty) for name, column in columns.items()} if empty else columns
