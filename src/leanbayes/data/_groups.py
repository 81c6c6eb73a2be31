"""Rows that belong together, such as the visits of one patient: no two parts of a data set share a group."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._columns import RawColumn
from leanbayes.data._dataset import Part
from leanbayes.data._roles import names_an_owner
from leanbayes.data._table_errors import Problem

# Training, validation and test take at least one each.
_LEAST_GROUPS = 3
# Test groups below which figures depend on which they are.
_FEW_GROUPS = 10
# A column is taken for one of groups where it has at least so many values, of at most so many rows on average.
_LEAST_VALUES, _MOST_ROWS, _LEAST_ROWS = 20, 100.0, 1.25
_HASH_BYTES = 8


def find_groups(columns: Sequence[RawColumn], name: str, source: str) -> tuple[RawColumn | None, list[Problem]]:
    """The column whose values are groups; None with the problem where it gives none."""
    column = next((column for column in columns if column.name == name), None)
    if column is None:
        return None, []  # which is said elsewhere
    column = column.as_text()
    where = f"column {name!r} of {source}"
    if column.missing.any():
        count = int(column.missing.sum())
        text = f"{where} misses {count} values, so that these rows are of no group; fill them in, or remove the rows"
        return None, [Problem(text)]
    count = len(set(column.values.tolist()))
    if count < _LEAST_GROUPS:
        is_one = "has a single value" if count == 1 else f"has {count} values"
        text = f"{where} {is_one}; to train, validate and test on different groups takes {_LEAST_GROUPS}"
        return None, [Problem(text)]
    return column, []


def group_numbers(texts: Sequence[str | None]) -> Tensor:
    """A number for the group of each row, the same for the same value in any file; one without a value is alone.

    Example:
        >>> numbers = group_numbers(["a", "b", "a", None, None])
        >>> bool(numbers[0] == numbers[2]), len(numbers.unique())
        (True, 4)
    """
    digests = (
        hashlib.blake2b(f"{number}".encode() if text is None else f"={text}".encode(), digest_size=_HASH_BYTES)
        for number, text in enumerate(texts)
    )
    numbers = np.frombuffer(b"".join(digest.digest() for digest in digests), "<i8")
    return torch.from_numpy(numbers.astype(np.int64))


def on_parts(name: str, train: Part, valid: Part, test: Part) -> str:
    """A note on how many groups each part has."""
    parts = {"training": train, "validation": valid, "testing": test}
    counts = {what: _count(part) for what, part in parts.items() if len(part)}
    words = ", ".join(f"{count:,} for {what}" for what, count in counts.items())
    note = f"no two parts share a value of {name!r}: {words}"
    if not len(test):
        return note
    few = counts["testing"] < _FEW_GROUPS
    return f"{note}; the figures are for new ones" + (", about which so few say little" if few else "")


def on_ungrouped(columns: Sequence[RawColumn]) -> list[str]:
    """A note where a column names what rows belong to, while the parts were drawn row by row."""
    found = next((column for column in columns if _looks_like_groups(column)), None)
    if found is None:
        return []
    known = found.values[~found.missing]
    count = len(set(known.tolist()))
    return [
        f"{found.name!r} has {count:,} values, of {len(known) / count:.1f} rows each on average, and test rows were "
        "drawn from among the rows of the same ones; to measure predictions for those that training has not seen, "
        f"pass group_by={found.name!r}"
    ]


def _count(part: Part) -> int:
    assert part.groups is not None
    return len(part.groups.unique())


def _looks_like_groups(column: RawColumn) -> bool:
    """Whether a column is named like one of patients or customers and has many values, each in a few rows."""
    if not names_an_owner(column.name) or not (column.is_text or (column.whole and column.format.kind == "number")):
        return False
    known = column.values[~column.missing]
    count = len(set(known.tolist()))
    return count >= _LEAST_VALUES and _LEAST_ROWS <= len(known) / count <= _MOST_ROWS
