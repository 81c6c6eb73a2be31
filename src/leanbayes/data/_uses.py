"""What the columns of a table are for: the target, inputs, ids, groups and the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._columns import RawColumn
from leanbayes.data._encode import short
from leanbayes.data._groups import find_groups
from leanbayes.data._order import find_order
from leanbayes.data._prepare import screen, unusable
from leanbayes.data._roles import choose_target, unknown_columns, unknown_target
from leanbayes.data._table_errors import Problem


class Uses(NamedTuple):
    """What columns are for.

    Attributes:
        goal: The target, None where no column can be it.
        features: Those that may be inputs.
        ids: Names of those that identify the rows.
        left: Names of those that are left out, with the reason.
        order: Numbers of the rows in their order, None to draw the parts at random.
        group: The one that says what rows belong to, None where they are independent.
        problems: What stands in the way.
    """

    goal: RawColumn | None
    features: list[RawColumn]
    ids: list[str]
    left: dict[str, str]
    order: NDArray[np.int64] | None
    group: RawColumn | None
    problems: list[Problem]


def find_uses(
    columns: list[RawColumn],
    path: Path,
    notes: list[str],
    *,
    target: str | None,
    categories: Sequence[str],
    numbers: Sequence[str],
    drop: Sequence[str],
    order_by: str | None,
    group_by: str | None,
) -> Uses:
    """What each column of a file is for; for the options see `read_table`."""
    source, chosen = path.name, {*categories, *numbers}
    named = [name for name in (order_by, group_by) if name is not None]
    goal, features, problems = _divide(columns, target, categories, numbers, drop, named, path, notes)
    features, ids, left = screen([column for column in features if column.name != group_by], chosen)
    order, wrong = (None, []) if order_by is None else find_order(columns, order_by, source)
    problems += wrong
    group, wrong = (None, []) if group_by is None else find_groups(columns, group_by, source)
    problems += [*wrong, *_clashes(goal, group_by, order_by, chosen, source)]
    problems += unusable(features, categories, numbers, path)
    if group_by is not None:
        ids = [*ids, group_by]
    return Uses(goal, features, ids, left, order, group, problems)


def _divide(
    columns: list[RawColumn],
    target: str | None,
    categories: Sequence[str],
    numbers: Sequence[str],
    drop: Sequence[str],
    order: Sequence[str],
    path: Path,
    notes: list[str],
) -> tuple[RawColumn | None, list[RawColumn], list[Problem]]:
    """The target, the columns that may be inputs, and what stands in the way."""
    source = path.name
    if len(columns) == 1:
        text = f"{source} has a single column, {short(columns[0].name)}, where inputs and a target are needed"
        more = "; if its cells are not separated by a comma, a semicolon, a tab or a bar, name their separator"
        return None, [], [Problem(text + more * (path.suffix != ".parquet"))]
    problems = [] if target is None else unknown_target(target, columns, source)
    if problems:
        target = problems[0].fixes.get("target", target)  # for what else is wrong with it
    problems += unknown_columns([*categories, *numbers, *drop, *order], columns, source)
    both = sorted({*categories, *numbers} & {*drop} | {*categories} & {*numbers})
    if both:
        text = f"column {both[0]!r} of {source} is named in more than one of categories, numbers and drop"
        problems.append(Problem(text))
    goal = next((column for column in columns if column.name == target), None)
    if target is None:
        goal, note, problem = choose_target([c for c in columns if c.name not in drop], source)
        notes += [note] if note else []
        problems += [] if problem is None else [problem]
    if goal is not None and goal.name in (*categories, *numbers, *drop):
        text = f"the target {goal.name!r} of {source} is among the categories, the numbers or the columns to leave out"
        problems.append(Problem(text))
    features = [column for column in columns if column is not goal and column.name not in drop]
    if not features and goal is not None:
        text = f"{source} has no column besides the target {goal.name!r}; inputs are needed too"
        problems.append(Problem(text))
    return goal, features, problems


def _clashes(
    goal: RawColumn | None, group_by: str | None, order_by: str | None, chosen: set[str], source: str
) -> list[Problem]:
    """What groups do not go with."""
    if group_by is None:
        return []
    found = []
    if order_by is not None:
        text = f"group_by={group_by!r} tests on whole groups, and order_by={order_by!r} on the last rows; name one"
        found.append(Problem(text))
    if group_by in chosen or (goal is not None and goal.name == group_by):
        what = "the target" if group_by not in chosen else "one of the columns to use"
        text = f"the groups of {source} are the values of {group_by!r}, which is no input and cannot be {what} as well"
        found.append(Problem(text))
    return found
