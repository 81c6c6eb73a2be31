"""Numbers with more around them than a unit: 1.2M, <0.05 and 2h 30m, rewritten as plain numbers and factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leanbayes.data._extras import need
from leanbayes.data._units import CODES, NUMBER, SYMBOLS

# What a column is read with, where its cells call for it: in the order in which cells are rewritten.
LIMITS, DURATIONS, MULTIPLES = "limits", "durations", "multiples"

_BLANK = r"[\s\x{a0}\x{202f}]?"
_MONEY = "|".join(rf"\Q{mark}\E" for mark in (*CODES, *SYMBOLS.replace("%", "")))

# A limit of detection stands among many numbers; classes such as <50K and >50K do not.
_LIMIT = rf"^[<>≤≥]=?{_BLANK}(?P<number>{NUMBER}.*)$"
_LEAST_NUMBERS = 10
_MOST_EXAMPLES = 3

# By their letters: m may be metres, minutes or months, and b or B bytes, if nothing else says what they are.
_WORDS = {
    "k": 1e3, "tsd": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "mln": 1e6, "million": 1e6,
    "millions": 1e6, "b": 1e9, "bn": 1e9, "mrd": 1e9, "bln": 1e9, "billion": 1e9, "billions": 1e9, "t": 1e12,
    "tn": 1e12, "trillion": 1e12,
}  # fmt: skip
_MULTIPLE = (
    rf"^(?P<head>\(?[+\-\x{{2212}}]?(?:{_MONEY})?{_BLANK}{NUMBER})(?P<blank>{_BLANK})"
    rf"(?P<word>(?i:{'|'.join(_WORDS)}))\.?(?P<tail>{_BLANK}(?:{_MONEY})?\)?)$"
)

# Seconds of each part, by what it may be called.
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NAMES = {"d": "d|days?", "h": "h|hrs?|hours?|Std", "m": "m|mins?|minutes?", "s": "s|secs?|seconds?|Sek"}
_PARTS = rf"{_BLANK}".join(
    rf"(?:(?P<{unit}>\d+(?:\.\d+)?){_BLANK}(?i:{names})\.?,?)?" for unit, names in _NAMES.items()
)
_TERMS = rf"^{_PARTS}$"
_SEVERAL_TERMS = r"^[\d.]+[^\d.]+\d"
# With hours or fractions of a second: 31:28 may be a result, and 14:30 a time of the day.
_CLOCK = r"^(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>[0-5]\d(?:\.\d+)?)$"
_SURE_CLOCK = r"^(?:\d+:\d+:.*|.*\.\d+)$"


def find_extras(column: Any) -> tuple[str, ...]:
    """What besides plain numbers is to be read in a column of texts, as `rewritten` takes it.

    Example:
        >>> import pyarrow as pa
        >>> [find_extras(pa.chunked_array([texts])) for texts in (["€1.2M", "€300K"], ["5m", "8m"], ["2h 30m", "45m"])]
        [('multiples',), (), ('durations',)]
    """
    known = column.drop_null().unique()
    found = []
    for name, (there, _) in _EXTRAS.items():
        if there(known):
            found.append(name)
            known = rewritten(known, [name])[0]
    return tuple(found)


def rewritten(column: Any, extras: Sequence[str]) -> tuple[Any, Any]:
    """Texts of a column as numbers that may have a unit, and what each one is multiplied by."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    factor = arrow.scalar(1.0)
    for name in extras:
        column, more = _EXTRAS[name][1](column)
        factor = compute.multiply(factor, more)
    return column, factor


def read_examples(column: Any, values: Sequence[float], extras: Sequence[str]) -> list[str]:
    """How some cells of a column were read, one for each way in which they are written."""
    found: dict[str, str] = {}
    ways = {LIMITS: r"(?P<way>^[<>≤≥])", DURATIONS: r"(?P<way>[:dhms])", MULTIPLES: _MULTIPLE.replace("word", "way")}
    compute = need("pyarrow.compute", "tables")
    for name in extras:
        parts = compute.struct_field(compute.extract_regex(compute.utf8_lower(column), ways[name]), "way")
        for way in parts.drop_null().unique().to_pylist()[:_MOST_EXAMPLES]:
            row = compute.index(parts, way).as_py()
            found.setdefault(column[row].as_py(), f"{column[row].as_py()!r} read as {values[row]:,.12g}")
    return list(found.values())


def _has_limits(known: Any) -> bool:
    compute = need("pyarrow.compute", "tables")
    limits = compute.match_substring_regex(known, _LIMIT)
    if not compute.any(limits).as_py():
        return False
    others = known.filter(compute.invert(limits))
    numbers = others.filter(compute.match_substring_regex(others, rf"^{NUMBER}"))
    return len(numbers.unique()) >= _LEAST_NUMBERS


def _without_limits(column: Any) -> tuple[Any, Any]:
    compute = need("pyarrow.compute", "tables")
    return compute.replace_substring_regex(column, _LIMIT, r"\1"), need("pyarrow", "tables").scalar(1.0)


def _has_durations(known: Any) -> bool:
    """Whether texts are durations of several parts, or of a clock: 2h 30m, 26:15:00, 1:23.45."""
    compute = need("pyarrow.compute", "tables")
    if _all_match(known, _TERMS):
        return compute.any(compute.match_substring_regex(known, _SEVERAL_TERMS)).as_py()
    if not _all_match(known, _CLOCK):
        return False
    return compute.any(compute.match_substring_regex(known, _SURE_CLOCK)).as_py()


def _in_seconds(column: Any) -> tuple[Any, Any]:
    """Durations as whole thousandths of a second, so that no decimal mark is in question."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    result = arrow.nulls(len(column), arrow.string())
    for pattern in (_TERMS, _CLOCK):
        parts = compute.extract_regex(column, pattern)
        total = arrow.scalar(0.0)
        for unit, seconds in _UNITS.items():
            if f"<{unit}>" in pattern:
                part = compute.struct_field(parts, unit)
                part = compute.if_else(compute.equal(part, ""), "0", part).cast(arrow.float64())
                total = compute.add(total, compute.multiply(part, float(seconds)))
        whole = compute.round(compute.multiply(total, 1000.0)).cast(arrow.int64()).cast(arrow.string())
        result = compute.coalesce(result, compute.binary_join_element_wise(whole, "s", " "))
    return compute.coalesce(result, column), compute.if_else(compute.is_valid(result), 1e-3, 1.0)


def _has_multiples(known: Any) -> bool:
    """Whether letters after numbers can mean thousands, millions or billions, and nothing else."""
    compute = need("pyarrow.compute", "tables")
    parts = compute.extract_regex(known, _MULTIPLE)
    there = parts.filter(compute.is_valid(parts))
    if not len(there):
        return False
    head, blank, word, tail = (compute.struct_field(there, name) for name in ("head", "blank", "word", "tail"))
    whole = compute.binary_join_element_wise(head, tail, "")
    money = compute.match_substring_regex(whole, _MONEY)
    cells = set(zip(*(part.to_pylist() for part in (head, blank, word, money))))
    words = {word for _, _, word, _ in cells}
    if all(is_money for *_, is_money in cells):
        return True
    # One letter in all cells is a unit like any other, whatever it means.
    if len({_WORDS[word.lower()] for word in words}) == 1 and len(there) == len(known):
        return False
    thousands = {"k", "K"} & words
    return all(
        is_money
        or len(word) > 1
        or (not blank and (word in "kKM" or (word == "m" and "k" in thousands) or (word == "B" and "." in head)))
        for head, blank, word, is_money in cells
    )


def _without_multiples(column: Any) -> tuple[Any, Any]:
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    word = compute.utf8_lower(compute.struct_field(compute.extract_regex(column, _MULTIPLE), "word"))
    place = compute.index_in(word, value_set=arrow.array(list(_WORDS)))
    factor = compute.take(arrow.array(list(_WORDS.values())), place)
    return compute.replace_substring_regex(column, _MULTIPLE, r"\1\4"), compute.fill_null(factor, 1.0)


def _all_match(known: Any, pattern: str) -> bool:
    compute = need("pyarrow.compute", "tables")
    return len(known) > 0 and compute.all(compute.match_substring_regex(known, pattern)).as_py()


_EXTRAS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], tuple[Any, Any]]]] = {
    LIMITS: (_has_limits, _without_limits),
    DURATIONS: (_has_durations, _in_seconds),
    MULTIPLES: (_has_multiples, _without_multiples),
}
