"""What each column of a table is for: input, target, a row's name, or nothing that a network can use."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leanbayes.data._columns import RawColumn
from leanbayes.data._encode import listed
from leanbayes.data._table_errors import Problem
from leanbayes.data._words import words_of

# Names that a target has where nothing else is said.
_TARGET_NAMES = ("target", "label", "class", "y", "outcome", "response", "output", "ziel", "zielwert", "klasse")
_ID_ENDINGS = ("id", "ids", "uid", "uuid", "guid", "key", "index", "idx", "nr", "no", "number", "nummer", "rowid")
# What rows belong to: names of people alone, of things and places where an ending of ids follows.
_PEOPLE = (
    "patient", "pat", "subject", "subj", "participant", "respondent", "proband", "customer", "cust", "client", "user",
    "person", "member", "employee", "student", "pupil", "player", "athlete", "driver", "donor", "speaker", "household",
    "family", "kunde", "kunden", "teilnehmer", "versicherter", "schüler", "klient",
)  # fmt: skip
_THINGS = (
    "account", "animal", "device", "machine", "engine", "vehicle", "battery", "sensor", "station", "site", "hospital",
    "clinic", "centre", "center", "store", "shop", "branch", "school", "farm", "plot", "well", "tree", "session",
    "gerät", "maschine", "filiale", "konto", "standort", "fall", "case",
)  # fmt: skip
# Below this many rows, that all values differ says nothing.
_LEAST_ROWS = 20
_MOSTLY = 0.9
# The share of rows that the categories of a column which nobody named should be of.
LEAST_COVERED = 0.5


def unknown_columns(names: Sequence[str], columns: Sequence[RawColumn], source: str) -> list[Problem]:
    """A problem for each name that no column has."""
    known = [column.name for column in columns]
    found = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its columns are {listed(known)}"
            found.append(Problem(f"{source} has no column {name!r}; {hint}"))
    return found


def unknown_target(name: str, columns: Sequence[RawColumn], source: str) -> list[Problem]:
    """A problem where no column has the name of the target; the one that was meant solves it."""
    found = unknown_columns([name], columns, source)
    known = {column.name for column in columns}
    if found and {part.strip() for part in name.split(",")} <= known:
        return [
            Problem(f"{name!r} names several columns of {source}, and a model predicts one of them; train one for each")
        ]
    near = difflib.get_close_matches(name, [column.name for column in columns], n=1)
    return [replace(problem, fixes={"target": near[0]}) if near else problem for problem in found]


def choose_target(columns: Sequence[RawColumn], source: str) -> tuple[RawColumn | None, str, Problem | None]:
    """The column to predict where none was named: one whose name says so, else the last.

    Returns:
        The column, what the user should know about the choice, and a problem where there is no choice.
    """
    named = [column for column in columns if column.name.lower() in _TARGET_NAMES]
    if len(named) == 1:
        return named[0], "", None
    candidates = [column.name for column in named or columns if named or can_be_target(column)]
    if not named and columns and can_be_target(columns[-1]):
        last = columns[-1].name
        return columns[-1], f"no target was named, and {last!r}, the last column, was taken", None
    if named:
        why = f"{listed([repr(name) for name in candidates])} all sound like one"
    elif columns:
        why = f"the last one, {columns[-1].name!r}, cannot be predicted"
    else:
        why = "there is none"
    text = f"it is not clear which column of {source} to predict, as {why}"
    if not named:
        some = listed([repr(name) for name in candidates])
        text += f"; it could be one of {some}" if some else ", and neither can any other"
    fixes = {"target": candidates[0] if len(candidates) == 1 else "NAME"} if candidates else {}
    return None, "", Problem(text, fixes)


def can_be_target(column: RawColumn) -> bool:
    """Whether it makes sense to predict a column: no date, no row's name, more than one value."""
    if column.format.kind == "date" or is_id(column) or is_free_text(column):
        return False
    known = column.texts[~column.missing] if column.is_text else column.values[~column.missing]
    return len(set(known.tolist())) > 1


def is_id(column: RawColumn) -> bool:
    """Whether a column names or counts the rows."""
    if column.format.kind in ("date", "boolean") or not (column.whole or column.is_text):
        return False
    known = column.values[~column.missing]
    distinct = len(set(known.tolist()))
    if column.is_text:
        coded = not any(" " in value for value in known.tolist())
        return len(known) >= _LEAST_ROWS and (
            (coded and distinct == len(known)) or (_sounds_like_id(column.name) and distinct >= _MOSTLY * len(known))
        )
    if len(known) >= _LEAST_ROWS // 2 and _sounds_like_id(column.name):
        return distinct >= _MOSTLY * len(known)
    # Numbers of the rows, from 0 or 1 on.
    if len(known) < _LEAST_ROWS or len(known) != len(column.values) or known[0] not in (0, 1):
        return False
    return bool((np.diff(known) == 1).all())


def is_free_text(column: RawColumn) -> bool:
    """Whether a column of texts has another one in most rows."""
    if not column.is_text:
        return False
    known = column.values[~column.missing].tolist()
    return len(known) >= _LEAST_ROWS and len(set(known)) > _MOSTLY * len(known)


def most_categories(rows: int) -> int:
    """How many categories a column which nobody named may have at most: the more rows, the more can be learnt."""
    return max(50, min(300, rows // 100))


def names_an_owner(name: str) -> bool:
    """Whether a name is that of what several rows may belong to, such as a patient or a device.

    Example:
        >>> [names_an_owner(name) for name in ("patient", "PatientID", "store_nr", "store", "userid", "product_id")]
        [True, True, True, False, True, False]
    """
    words = words_of(name)
    if words and words[-1].removesuffix("id") in (*_PEOPLE, *_THINGS):
        words[-1:] = [words[-1].removesuffix("id"), *(["id"] if words[-1].endswith("id") else [])]
    is_id = len(words) > 1 and words[-1] in _ID_ENDINGS
    owner = words[-2:-1] if is_id else words
    return len(owner) == 1 and (owner[0] in _PEOPLE or (is_id and owner[0] in _THINGS))


def _sounds_like_id(name: str) -> bool:
    words = words_of(name)
    return bool(words) and (words[-1] in _ID_ENDINGS or words[-1].endswith(("nummer", "uuid")) or words == ["unnamed"])
