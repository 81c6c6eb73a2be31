"""Lines of a CSV file that have more or fewer cells than the first one has names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import islice

from leanbayes.data._names import title_above

_NAMED = 3


def with_unnamed(names: list[str], rows: Sequence[Sequence[str]], notes: list[str]) -> list[str]:
    """The names, with an empty one where every line has one cell more: the first, or the last where it is empty.

    Args:
        names: Of the first line.
        rows: Cells of some lines after it.
        notes: For the user; a name that was added at the start is noted.

    Example:
        >>> with_unnamed(["a", "b"], [["1", "2", "3"], ["2", "4", "5"]], [])
        ['', 'a', 'b']
        >>> with_unnamed(["a", "b"], [["2", "3", ""], ["2", "4", ""]], [])
        ['a', 'b', '']
    """
    # A single line says too little, and a single name may be a title.
    if min(len(rows), len(names)) < 2 or any(len(row) != len(names) + 1 for row in rows):
        return names
    if not any(row[-1].strip() for row in rows):
        return [*names, ""]
    notes.append("each line has one more cell than there are names: the first column is taken to be the unnamed one")
    return ["", *names]


def uneven(name: str, text: str, separator: str, width: int, header: int) -> str:
    """Which lines do not have as many cells as there are names, in one sentence; empty where all have.

    Args:
        name: Of the file.
        text: All of it.
        separator: Between its cells.
        width: How many names there are.
        header: How many lines stand before the rows.
    """
    lines = text.splitlines(keepends=True)
    reader = csv.reader(io.StringIO("".join(lines[header:]), newline=""), delimiter=separator)
    found, before = [], header
    try:
        for row in reader:
            start, before = before + 1, header + reader.line_num
            if row and len(row) != width:
                found.append((start, len(row), before))
    except csv.Error:
        pass
    if not found:
        return ""
    first, count, last = found[0]
    where = f"{name} cannot be read as a table: "
    if last == len(lines) > first:
        return f"{where}a quotation mark in line {first} is never closed; remove it, or close it"
    if width == 1:
        title = lines[max(0, header - 1)].strip()
        return title_above(name, title, f"is a single name, and line {first} has {count} cells")
    some = [f"line {start} has {cells} cell{'s' if cells > 1 else ''}" for start, cells, _ in islice(found, _NAMED)]
    more = len(found) - len(some)
    others = f" and so on, {len(found):,} lines in all" if more else ""
    return (
        f"{where}there are {width} columns, but {', '.join(some)}{others}; mend these lines, or put a cell that holds "
        f"the separator {separator!r} in quotation marks"
    )
