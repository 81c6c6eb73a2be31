"""Columns of a file as numbers and texts: by what they look like, or as the columns of a training were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._arrow import Cells
from leanbayes.data._dataset import Column
from leanbayes.data._extras import need
from leanbayes.data._formats import UNIX, Format, as_seconds, find_decimal, find_format, read_as
from leanbayes.data._words import names_a_time

# Seconds since 1970 of the first of January in 1990 and in 2100.
_SINCE, _UNTIL = 631152000.0, 4102444800.0


@dataclass(frozen=True)
class RawColumn:
    """A column of a file.

    Attributes:
        name: Its name.
        values: float64 with NaN where a value is missing (dates: seconds since 1970), or texts with None there.
        whole: Whether all numbers are whole.
        format: How its texts were read.
        cells: What the file has, None where that is no more than `values`.
        wrong: Which values could not be read, so that they are missing, too.
    """

    name: str
    values: NDArray[Any]
    whole: bool = False
    format: Format = field(default_factory=lambda: Format("number"))
    cells: Any = field(default=None, repr=False, compare=False)
    wrong: NDArray[np.bool_] | None = field(default=None, repr=False, compare=False)

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.values.dtype == object

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Which values are missing."""
        if self.is_text:
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnan(self.values)

    @cached_property
    def texts(self) -> NDArray[Any]:
        """Values as texts: whole numbers without a point, None where one is missing."""
        if self.is_text:
            return self.values
        if self.format.kind != "number" and self.cells is not None:
            return _texts(self.cells)
        return _objects([number_text(value) for value in self.values.tolist()])

    def as_text(self) -> RawColumn:
        """The same as texts: numbers as `texts` has them, and what is none as the file has it."""
        texts = self.texts if self.cells is None else np.where(self.missing, _texts(self.cells), self.texts)
        return RawColumn(self.name, texts, format=replace(self.format, others=()), cells=self.cells)

    def take(self, rows: NDArray[Any]) -> RawColumn:
        """The column with some rows, by number or by a mask."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        wrong = None if self.wrong is None else self.wrong[numbers]
        cells = None if self.cells is None else self.cells.take(numbers)
        return RawColumn(self.name, self.values[numbers], self.whole, self.format, cells, wrong)


def infer_columns(cells: Cells, numbers: Sequence[str] = ()) -> list[RawColumn]:
    """Columns as numbers, dates, yes and no, or texts, whichever they look like.

    Args:
        cells: Of the file.
        numbers: Names of those that are numbers even if they look like Unix times.
    """
    types = need("pyarrow", "tables").types
    texts = {name: column for name, column in cells.columns.items() if types.is_string(column.type)}
    decimal = find_decimal(list(texts.values()), cells.separator)
    columns = [
        _by_format(name, column, find_format(column, decimal, cells.separator))
        if name in texts
        else _typed(name, column)
        for name, column in cells.columns.items()
    ]
    return [column if column.name in numbers else _as_times(column, unix_format(column)) for column in columns]


def read_stored(cells: Cells, code: Column) -> RawColumn:
    """A column as the training's was read, or, where that fails, as the same kind is written otherwise.

    Args:
        cells: Of the new file.
        code: The column of training.
    """
    column = cells.columns[code.name]
    if not need("pyarrow", "tables").types.is_string(column.type):
        return _as_times(_typed(code.name, column), code.format)
    if not code.format:
        return _by_format(code.name, column, Format("text"))
    read = _by_format(
        code.name, column, Format(code.source, code.format, code.others, unit=code.unit, extras=code.extras)
    )
    if read.wrong is not None and read.wrong.any():
        # The same values, written as in another country, or without their unit.
        found = find_format(column, find_decimal([column], cells.separator), cells.separator)
        one_unit = found.unit == code.unit or not (found.unit and code.unit)
        if found.kind == code.source and not found.others and one_unit:
            return _by_format(code.name, column, found)
    # A text among numbers that are categories is one more value, not a wrong one.
    return read.as_text() if code.kind == "category" else read


def unix_format(column: RawColumn) -> str:
    """The format of a column that is named like a time and holds Unix times, all since 1990; empty for others."""
    if column.is_text or column.format.kind != "number" or column.format.unit or not names_a_time(column.name):
        return ""
    known = column.values[~column.missing]
    if not len(known):
        return ""
    first, last = known.min(), known.max()
    return next((name for name, step in UNIX.items() if _SINCE <= first * step and last * step <= _UNTIL), "")


def _as_times(column: RawColumn, form: str) -> RawColumn:
    """Numbers as the Unix times that they are."""
    if form not in UNIX or column.format.kind != "number":
        return column
    return replace(column, values=column.values * UNIX[form], whole=False, format=Format("date", form))


def number_text(value: float) -> str | None:
    """A number as a text, whole ones without a point; None for NaN."""
    if value != value:
        return None
    return str(int(value)) if value == int(value) else repr(value)


def _by_format(name: str, column: Any, form: Format) -> RawColumn:
    if form.kind == "text":
        return RawColumn(name, _texts(column), format=form, cells=column)
    values, wrong = read_as(column, form)
    if form.whole and _beyond_floats(values):
        return RawColumn(name, _texts(column), format=Format("text"), cells=column)
    return RawColumn(name, values, form.whole, form, column, wrong)


def _typed(name: str, column: Any) -> RawColumn:
    """A column of a Parquet file, which says what it is."""
    arrow = need("pyarrow", "tables")
    types, kind = arrow.types, column.type
    if types.is_null(kind):
        return RawColumn(name, np.full(len(column), np.nan))
    if types.is_boolean(kind):
        values = column.cast(arrow.int8()).cast(arrow.float64())
        return RawColumn(name, _floats(values), True, Format("boolean", "true/false"), column)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        values = _floats(column.cast(arrow.float64(), safe=False))
        if types.is_integer(kind) and _beyond_floats(values):
            return RawColumn(name, _texts(column), format=Format("text"), cells=column)
        whole = bool((values % 1 == 0)[~np.isnan(values)].all())
        return RawColumn(name, values, whole, Format("number", "1234.5"))
    if types.is_duration(kind):
        values = _seconds_of(column.cast(arrow.duration("us"), safe=False))
        return RawColumn(name, values, format=Format("number", "1234.5", unit="s"))
    if types.is_time(kind):
        values = _seconds_of(column.cast(arrow.time64("us"), safe=False))
        return RawColumn(name, values, format=Format("date", "%H:%M:%S"), cells=column)
    if types.is_timestamp(kind) or types.is_date(kind):
        return RawColumn(name, _floats(as_seconds(column)), format=Format("date", "ISO 8601"), cells=column)
    return RawColumn(name, _texts(column), format=Format("text"), cells=column)


def _beyond_floats(values: NDArray[np.float64]) -> bool:
    """Whether whole numbers have more digits than a float: what is so exact is a code, such as that of an account."""
    return bool((np.abs(values[np.isfinite(values)]) > 2**53).any())


def _seconds_of(column: Any) -> NDArray[np.float64]:
    arrow = need("pyarrow", "tables")
    return _floats(column.cast(arrow.int64()).cast(arrow.float64())) / 1e6


def _floats(column: Any) -> NDArray[np.float64]:
    return np.array(column.to_numpy(), dtype=np.float64)


def _texts(column: Any) -> NDArray[Any]:
    return _objects([None if v is None else _text(v) for v in column.to_pylist()])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _objects(values: list[str | None]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
