"""CSV and Parquet files as columns, through pyarrow."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._extras import need

CSV_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
_SEPARATORS = ",;\t|"
_MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A")


@dataclass(frozen=True)
class RawColumn:
    """A column of a file.

    Attributes:
        name: Its name.
        values: float64 with NaN where a value is missing, or texts with None there.
        whole: Whether the numbers are whole by their type.
    """

    name: str
    values: NDArray[Any]
    whole: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.values.dtype == object

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which values are missing."""
        if self.is_text:
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnan(self.values)


def read_columns(
    path: Path, *, separator: str | None = None, header: bool = True, na: Sequence[str] = ()
) -> list[RawColumn]:
    """All columns of a CSV, TSV or Parquet file.

    Args:
        path: The file; CSV may be compressed as ``.gz``.
        separator: Between the cells of a CSV file; None looks at the first line.
        header: Whether the first line has the names.
        na: Texts that stand for a missing value, besides the usual ones.

    Returns:
        The columns in the order of the file.

    Raises:
        ValueError: If the file is no such table, in one sentence.
    """
    arrow = need("pyarrow", "tables")
    try:
        table = _parquet(path) if path.suffix == ".parquet" else _csv(path, separator, header, na)
    except arrow.ArrowException as error:
        raise ValueError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from None
    except (UnicodeDecodeError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    if not table.num_rows or not table.num_columns:
        raise ValueError(f"{path} has no rows; a table with one row per example is needed")
    repeated = [name for name in table.column_names if table.column_names.count(name) > 1]
    if repeated:
        raise ValueError(f"{path} has two columns named {repeated[0]!r}; rename one of them")
    return [_column(arrow, name, table.column(name)) for name in table.column_names]


def _parquet(path: Path) -> Any:
    return need("pyarrow.parquet", "Parquet files").read_table(path)


def _csv(path: Path, separator: str | None, header: bool, na: Sequence[str]) -> Any:
    reader = need("pyarrow.csv", "CSV files")
    line = _first_line(path)
    if not line.strip():
        raise ValueError(f"{path} is empty or begins with an empty line; its first line should name the columns")
    separator = separator or _guess_separator(path, line)
    cells = next(csv.reader(io.StringIO(line), delimiter=separator))
    if header and all(_is_number(cell) for cell in cells):
        raise ValueError(
            f"the first line of {path} holds numbers where names of columns should stand; "
            "add a line of names, or pass header=False"
        )
    return reader.read_csv(
        path,
        read_options=reader.ReadOptions(
            column_names=None if header else [f"column {number}" for number in range(1, len(cells) + 1)]
        ),
        parse_options=reader.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=reader.ConvertOptions(null_values=[*_MISSING, *na], strings_can_be_null=True),
    )


def _first_line(path: Path) -> str:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        return file.readline()


def _guess_separator(path: Path, line: str) -> str:
    if ".tsv" in path.suffixes[-2:]:
        return "\t"
    return max(_SEPARATORS, key=lambda separator: (line.count(separator), -_SEPARATORS.index(separator)))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column(arrow: Any, name: str, values: Any) -> RawColumn:
    types = arrow.types
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_boolean(kind):
        values, kind = values.cast(arrow.int8()), arrow.int8()
    if types.is_null(kind):
        return RawColumn(name, np.full(len(values), np.nan))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        numbers = np.array(values.cast(arrow.float64(), safe=False).to_numpy(), dtype=np.float64)
        return RawColumn(name, numbers, whole=types.is_integer(kind))
    return RawColumn(name, _texts([None if v is None else str(v) for v in values.to_pylist()]))


def _texts(values: list[str | None]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
