"""The first line of a CSV file, which should name the columns: whether it is a title or data instead."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_TEXT = 40
# Lines below a title in which the names are looked for.
_BELOW = 10


def is_title(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether most cells of the first line are empty, and a line below it names all columns.

    Example:
        >>> is_title(["Sales of May", "", ""], [["", "", ""], ["a", "b", "c"], ["1", "2", "3"]])
        True
        >>> is_title(["", "a", "b"], [["1", "2", "3"]])
        False
    """
    if 2 * sum(map(bool, names)) > len(names):
        return False
    return any(
        len(row) == len(names) and all(cell.strip() and not is_number(cell) for cell in row) for row in rows[:_BELOW]
    )


def title_above(source: str, title: str, why: str = "leaves most columns without a name") -> str:
    """The error of a file whose first line is a title."""
    title = title if len(title) <= _MOST_TEXT else title[: _MOST_TEXT - 3] + "..."
    return (
        f"{source} cannot be read as a table: its first line, {title!r}, {why}; remove what stands above the names of "
        "the columns"
    )


def on_names(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A note where the first line looks like data: some cells are numbers, and others occur again in their column.

    Example:
        >>> on_names(["39", "Private"], [["50", "Public"], ["38", "Private"]])
        ["the first line was taken for the names of the columns, though some of it looks like data ('39', 'Private'); \
if it is, pass header=False"]
        >>> on_names(["country", "2023", "2024"], [["Chad", "5", "6"], ["Mali", "7", "8"]])
        []
    """
    places = [place for place, name in enumerate(names) if is_number(name)]
    again = [place for place, name in enumerate(names) if name and _occurs(name, place, rows)]
    fractions = [place for place in places if "." in names[place]]
    texts = [place for place in range(len(names)) if names[place] and place not in places]
    # Years and wave lengths may be names; those of other columns are none of their values.
    if not places or not (set(again) & set(texts) or (fractions and again)):
        return []
    one, other = [names[place] for place in sorted({*places, *again})][:2]
    return [
        "the first line was taken for the names of the columns, though some of it looks like data "
        f"({one!r}, {other!r}); if it is, pass header=False"
    ]


def is_number(cell: str) -> bool:
    """Whether a cell is a number with a point or a comma."""
    try:
        float(cell.strip().replace(",", "."))
    except ValueError:
        return False
    return True


def _occurs(name: str, place: int, rows: Sequence[Sequence[str]]) -> bool:
    return any(place < len(row) and row[place].strip() == name for row in rows)
