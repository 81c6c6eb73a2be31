"""Classes of a table's target: spellings of one and the same, and what their user should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leanbayes.data._encode import listed, short

# Rows of a class below which little can be learnt of it.
_FEW_ROWS = 10
# The share of the largest class from which accuracy says next to nothing.
_MOST_ROWS = 0.9


def one_spelling(values: Sequence[str]) -> list[str]:
    """Texts such as yes and YES as the more frequent one of those that differ in case alone.

    Example:
        >>> one_spelling(["yes", "No", "YES", "yes"])
        ['yes', 'No', 'yes', 'yes']
    """
    chosen: dict[str, str] = {}
    # Of equals the first in the alphabet, whatever the order of the rows.
    for value, _ in sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])):
        chosen.setdefault(value.lower(), value)
    return [chosen[value.lower()] for value in values]


def on_classes(target: str, names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Notes on classes with few rows or nearly all of them, and on those that may be one.

    Args:
        target: Name of the column.
        names: Of the classes.
        counts: Rows of each.
    """
    notes = []
    few = sorted((count, name) for name, count in zip(names, counts) if count < _FEW_ROWS)
    if few and len(few) == len(names):
        notes.append(f"no class of {target!r} has {_FEW_ROWS} rows or more; the largest has {max(counts)}")
    elif few:
        which = listed([f"{short(name)} ({count})" for count, name in few], 5)
        what = f"{len(few)} of the {len(names)} classes" if len(few) > 1 else "one class"
        notes.append(f"{what} of {target!r} {'have' if len(few) > 1 else 'has'} fewer than {_FEW_ROWS} rows: {which}")
    share, largest = max(zip(counts, names))
    share /= sum(counts)
    if _MOST_ROWS <= share < 1:
        percent = f"{min(100 * share, 99.9):.3g}%"
        notes.append(
            f"{percent} of the rows are of the class {short(largest)}, so always guessing it is {percent} accurate; "
            "judge by NLL rather than accuracy"
        )
    twins: dict[str, list[str]] = {}
    for name in names:
        twins.setdefault(name.lower(), []).append(name)
    same = [" and ".join(map(short, group)) for group in twins.values() if len(group) > 1]
    if same:
        notes.append(f"classes of {target!r} that differ only in case are kept apart: {listed(same)}")
    return notes
