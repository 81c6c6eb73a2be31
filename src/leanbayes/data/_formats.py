"""How texts of a table are written: numbers with points or commas, dates, and pairs such as yes and no."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._amounts import DURATIONS, find_extras, rewritten
from leanbayes.data._extras import need
from leanbayes.data._units import SYMBOLS, find_unit, in_unit

Kind = Literal["number", "boolean", "date", "text"]

# By example: the mark before decimals, and between thousands.
NUMBERS = {
    "1234.5": (".", ""),
    "1234,5": (",", ""),
    "1,234.5": (".", ","),
    "1.234,5": (",", "."),
    "1 234.5": (".", " "),
    "1 234,5": (",", " "),
    "1'234.5": (".", "'"),
}
_POINTS = tuple(name for name, (decimal, _) in NUMBERS.items() if decimal == ".")
_COMMAS = tuple(name for name, (decimal, _) in NUMBERS.items() if decimal == ",")
_PAIRS = (
    "yes/no", "y/n", "true/false", "t/f", "on/off", "ja/nein", "j/n", "wahr/falsch", "oui/non", "vrai/faux", "si/no",
    "sí/no", "sim/não", "da/net", "tak/nie",
)  # fmt: skip
# strptime takes the second 60 for the first one of the next minute.
_TIMES = {
    "%H:%M": r"\d{1,2}:\d{2}",
    "%H:%M:%S": r"\d{1,2}:\d{2}:[0-5]\d",
    "%I:%M %p": r"\d{1,2}:\d{2} ?[AaPp][Mm]",
    "%I:%M:%S %p": r"\d{1,2}:\d{2}:[0-5]\d ?[AaPp][Mm]",
}
_CLOCK = {"": "", **{f" {clock}": f"[ T]{texts}" for clock, texts in _TIMES.items()}}
_DAYS = {
    "%Y-%m-%d": r"\d{4}-\d{1,2}-\d{1,2}",
    "%Y/%m/%d": r"\d{4}/\d{1,2}/\d{1,2}",
    "%d.%m.%Y": r"\d{1,2}\.\d{1,2}\.\d{4}",
    "%d.%m.%y": r"\d{1,2}\.\d{1,2}\.\d{2}",
    "%m/%d/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%d/%m/%Y": r"\d{1,2}/\d{1,2}/\d{4}",
    "%m/%d/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%d/%m/%y": r"\d{1,2}/\d{1,2}/\d{2}",
    "%d-%m-%Y": r"\d{1,2}-\d{1,2}-\d{4}",
    "%d %b %Y": r"\d{1,2} [A-Za-z]{3} \d{4}",
    "%d-%b-%Y": r"\d{1,2}-[A-Za-z]{3}-\d{4}",
    "%b %d, %Y": r"[A-Za-z]{3} \d{1,2}, \d{4}",
    "%d %B %Y": r"\d{1,2} [A-Za-z]{3,} \d{4}",
    "%B %d, %Y": r"[A-Za-z]{3,} \d{1,2}, \d{4}",
    "%Y-%m": r"(19|20)\d{2}-\d{2}",
}
# Seconds of one step of a Unix time.
UNIX = {"Unix seconds": 1.0, "Unix milliseconds": 1e-3, "Unix microseconds": 1e-6}
ISO, ISO_ZONE = "ISO 8601", "ISO 8601 with zone"
# What texts of each pattern look like.
_DATES = {
    ISO: r"\d{4}-\d{2}-\d{2}([ T]\d.*)?",
    **{day + clock: days + clocks for day, days in _DAYS.items() for clock, clocks in _CLOCK.items()},
    **_TIMES,
}
# The day that strptime gives to a time without one: the first of January 1900.
_MIDNIGHT = -2208988800.0
_OR, _MOST_PATTERNS = " or ", 4
# Programs write whole numbers with one zero where others of the column are missing.
_WHOLE = r"[+-]?\d+([.,]0)?"
_MINUS = "\u2212"
# A column is of numbers where at most one value in twenty is none, and few different ones are not.
_LEAST_SHARE, _MOST_OTHERS, _LEAST_VALUES = 0.95, 5, 20
# Values of each column that the decimal mark is looked for in.
_SAMPLE = 1000
_FEW = 100


@dataclass(frozen=True)
class Format:
    """How the texts of a column are to be read.

    Attributes:
        kind: What they stand for.
        pattern: One of `NUMBERS`, a pattern of strptime or an ISO one (or several of these with " or " between
            them), "yes/no"; empty for plain texts.
        others: Texts that are no numbers or no dates, and count as missing.
        whole: Whether all numbers are whole and written as 1 or 1.0.
        either: Whether days and months may be the other way round.
        unit: What stands beside all numbers, such as "kg" or "€".
        extras: What besides plain numbers is read as numbers, such as "multiples" (1.2M).
    """

    kind: Kind
    pattern: str = ""
    others: tuple[str, ...] = ()
    whole: bool = False
    either: bool = False
    unit: str = ""
    extras: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The ways in which dates are written."""
        return tuple(self.pattern.split(_OR))


def find_decimal(columns: list[Any], separator: str | None) -> str | None:
    """The decimal mark that texts of a file can have alone: "." or ",", None where nothing decides it."""
    marks = set()
    columns = [_without_unit(column.slice(0, _SAMPLE)) for column in columns]
    for column in columns:
        fits = [name for name in NUMBERS if _all(_matches(column, _number_pattern(name)))]
        decimals = {NUMBERS[name][0] for name in fits}
        if len(decimals) == 1:
            marks |= decimals
    if len(marks) == 1:
        return marks.pop()
    return "," if not marks and separator == ";" and any(map(_has_comma_number, columns)) else None


def find_format(column: Any, decimal: str | None = None, separator: str | None = None) -> Format:
    """What the texts of a column are.

    Args:
        column: Array of texts; null where a value is missing.
        decimal: The file's decimal mark, where `find_decimal` found one.
        separator: Between the cells of the file.

    Returns:
        The format; that of texts where nothing else fits.
    """
    known = len(column) - column.null_count
    if not known:
        return Format("number", "1234.5")
    if _any(_matches(column, r"[+-]?0\d+")):
        return Format("text")  # codes, such as those of places
    if decimal != "," and _are_floats(column):  # quick, and by far the most frequent
        return Format("number", "1234.5", whole=_all(_matches(column, _WHOLE)))
    names = _by_decimal(decimal, separator)
    hits = {name: _matches(column, _number_pattern(name)) for name in names}
    for name in names:
        if _all(hits[name]):
            return Format("number", name, whole=_all(_matches(column, _WHOLE)), unit=find_unit(column))
    month_first = decimal != "," and separator != ";"
    found = _find_boolean(column) or _find_date(column, month_first) or _find_dates(column, month_first)
    found = found or _find_with_extras(column, decimal, separator) or _find_with_unit(column, decimal, separator)
    if found is not None:
        return found
    best = max(names, key=lambda name: _count(hits[name]))
    stray = column.filter(need("pyarrow.compute", "tables").invert(hits[best])).drop_null()
    if _are_stray(stray, column):
        return Format("number", best, tuple(sorted(stray.unique().to_pylist())))
    return Format("text")


def _find_with_extras(column: Any, decimal: str | None, separator: str | None) -> Format | None:
    """Numbers, once limits, durations and multiples are written as such."""
    extras = find_extras(column)
    if not extras:
        return None
    found = find_format(rewritten(column, extras)[0], decimal, separator)
    if found.kind != "number":
        return None
    return replace(found, extras=extras, whole=found.whole and DURATIONS not in extras)


def _find_with_unit(column: Any, decimal: str | None, separator: str | None) -> Format | None:
    """Numbers that all have the same unit beside them, but for a few stray texts."""
    unit = find_unit(column)
    if not unit or unit in SYMBOLS:
        return None
    compute = need("pyarrow.compute", "tables")
    numbers, _ = in_unit(column, unit)
    found = find_format(numbers, decimal, separator)
    stray = column.filter(compute.is_null(numbers)).drop_null()
    if found.kind != "number" or found.others or (len(stray) and not _are_stray(stray, column)):
        return None
    return replace(found, unit=unit, others=tuple(sorted(stray.unique().to_pylist())))


def _are_stray(texts: Any, column: Any) -> bool:
    """Whether texts of a column that are something else may count as missing: few of many, and few different ones."""
    known = len(column) - column.null_count
    few = len(texts) <= (1 - _LEAST_SHARE) * known and len(texts.unique()) <= _MOST_OTHERS
    return few and known >= _LEAST_VALUES


def _without_unit(column: Any) -> Any:
    if _are_floats(column):  # to look for a unit takes long
        return column
    column, _ = rewritten(column, find_extras(column))
    unit = find_unit(column)
    return in_unit(column, unit)[0] if unit else column


def read_as(column: Any, form: Format) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values of a column of texts by a format that is not that of texts.

    Args:
        column: Array of texts; null where a value is missing.
        form: How to read them.

    Returns:
        float64 (dates: seconds since 1970), NaN where a value is missing or wrong; and which are wrong.
    """
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    column, multiple = rewritten(column, form.extras)
    if form.others:
        column = compute.if_else(compute.is_in(column, value_set=arrow.array(form.others)), None, column)
    if form.kind == "number":
        numbers, factor = in_unit(column, form.unit) if form.unit else (column, arrow.scalar(1.0))
        good = _matches(numbers, _number_pattern(form.pattern))
        factor = compute.multiply(factor, multiple)
        values = compute.multiply(_numbers(compute.if_else(good, numbers, None), form.pattern), factor)
    elif form.kind == "boolean":
        yes, no = form.pattern.split("/")
        lower = compute.utf8_lower(column)
        is_yes, is_no = (compute.is_in(lower, value_set=arrow.array(pair)) for pair in ([yes, "1"], [no, "0"]))
        good = compute.or_(is_yes, is_no)
        values = compute.if_else(good, is_yes.cast(arrow.float64()), None)
    else:
        values = _seconds(column, form.pattern)
        good = compute.is_valid(values)
    known = np.asarray(compute.is_valid(column))
    fine = np.asarray(compute.fill_null(good, False))
    return np.array(values.cast(arrow.float64()).to_numpy(), dtype=np.float64), known & ~fine


def as_seconds(column: Any) -> Any:
    """Dates and times of pyarrow as seconds since 1970."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    stamps = column.cast(arrow.timestamp("us", tz=getattr(column.type, "tz", None)), safe=False)
    return compute.divide(stamps.cast(arrow.int64()).cast(arrow.float64()), 1e6)


def _by_decimal(decimal: str | None, separator: str | None) -> tuple[str, ...]:
    """Formats of numbers, the likely ones first: 1,234 alone may be a thousand or a little more than one."""
    if decimal == ",":
        return (*_COMMAS, *_POINTS)
    plain, *others = _POINTS
    if decimal == "." or separator != ";":
        return (plain, *others, *_COMMAS)
    return (plain, *_COMMAS, *others)


def _number_pattern(name: str) -> str:
    decimal, thousands = (re.escape(mark) if mark else "" for mark in NUMBERS[name])
    thousands = "[ \u00a0\u202f]" if NUMBERS[name][1] == " " else "['’]" if NUMBERS[name][1] == "'" else thousands
    groups = rf"\d{{1,3}}({thousands}\d{{3}})+"
    if name == "1,234.5":
        groups += r"|\d{1,2}(,\d{2})+,\d{3}"  # India's: 12,34,567
    digits = rf"({groups}|\d+)" if thousands else r"\d+"
    number = rf"({digits}({decimal}\d*)?|{decimal}\d+)([eE][+-]?\d+)?"
    in_brackets = rf"|[{SYMBOLS}]?\s?\([{SYMBOLS}]?\s?{number}\s?[{SYMBOLS}]?\)"  # as accountants write minus
    words = "|[+-]?(inf|Inf|INF|infinity|Infinity)" if name == "1234.5" else ""
    return rf"[{SYMBOLS}]?\s?[+\-{_MINUS}]?[{SYMBOLS}]?{number}\s?[{SYMBOLS}]?{in_brackets}{words}"


def _numbers(column: Any, name: str) -> Any:
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    decimal = NUMBERS[name][0]
    column = compute.replace_substring_regex(column, rf"^[{SYMBOLS}]?\s?\((.*)\)$|{_MINUS}", r"-\1")
    # What is neither a digit nor the decimal mark, a sign or an exponent goes.
    plain = compute.replace_substring_regex(column, rf"[^0-9a-zA-Z+\-{decimal}]", "")
    if decimal == ",":
        plain = compute.replace_substring(plain, ",", ".")
    return plain.cast(arrow.float64())


def _are_floats(column: Any) -> bool:
    arrow = need("pyarrow", "tables")
    try:
        column.cast(arrow.float64())
    except arrow.ArrowInvalid:
        return False
    return True


def _has_comma_number(column: Any) -> bool:
    return _all(_matches(column, _number_pattern("1234,5"))) and not _all(_matches(column, _WHOLE))


def _find_boolean(column: Any) -> Format | None:
    compute = need("pyarrow.compute", "tables")
    values = {value for value in compute.unique(compute.utf8_lower(column)).to_pylist() if value is not None}
    # 1 and 0 among them mean the same.
    if values <= {"1", "0"}:
        return None
    pair = next((pair for pair in _PAIRS if values <= {*pair.split("/"), "1", "0"}), None)
    return None if pair is None else Format("boolean", pair, whole=True)


def _find_date(column: Any, month_first: bool) -> Format | None:
    known = column.drop_null()
    few = known.slice(0, _FEW)  # most patterns do not even fit these
    for pattern in (ISO, ISO_ZONE):
        if _all(_matches(few, r"\d{4}-\d{2}-\d{2}.*")) and _reads(few, pattern) and _reads(known, pattern):
            return Format("date", pattern)
    found = [
        pattern
        for pattern, texts in _DATES.items()
        if pattern != ISO and _all(_matches(few, texts)) and _all(_matches(known, texts)) and _reads(known, pattern)
    ]
    if not found:
        return None
    months = [pattern for pattern in found if pattern.startswith("%m")]
    others = [pattern for pattern in found if not pattern.startswith("%m")]
    chosen = (months if months and (month_first or not others) else others)[0]
    return Format("date", chosen, either=bool(months and others))


def _find_dates(column: Any, month_first: bool) -> Format | None:
    """Dates written in more than one way, or with a few texts among them that are none."""
    compute = need("pyarrow.compute", "tables")
    known = column.drop_null()
    few = known.slice(0, _FEW)
    if _count(_matches(few, "|".join(_DATES.values()))) < _LEAST_SHARE * len(few):
        return None
    values = compute.value_counts(known)
    texts, counts = values.field("values"), values.field("counts")
    patterns: list[str] = []
    either = False
    while len(texts) and len(patterns) < _MOST_PATTERNS:
        fits = {p: _fits(texts, p) for p in _DATES if not any(_contradict(p, other) for other in patterns)}
        shares = {p: int(compute.sum(counts.filter(fit)).as_py() or 0) for p, fit in fits.items()}
        # Of equals, the order of day and month that the file suggests.
        best = max(shares, key=lambda p: (shares[p], p.startswith("%m") == month_first))
        if not shares[best]:
            break
        either |= any(_contradict(best, p) and shares[p] == shares[best] for p in shares)
        patterns.append(best)
        left = compute.invert(fits[best])
        texts, counts = texts.filter(left), counts.filter(left)
    stray = int(compute.sum(counts).as_py() or 0)
    few_stray = len(texts) <= _MOST_OTHERS and stray <= (1 - _LEAST_SHARE) * len(known) and len(known) >= _LEAST_VALUES
    if not patterns or (stray and not few_stray):
        return None
    return Format("date", _OR.join(patterns), tuple(sorted(texts.to_pylist())), either=either)


def _fits(texts: Any, pattern: str) -> Any:
    """Which texts a pattern reads."""
    compute = need("pyarrow.compute", "tables")
    looks = _matches(texts, _DATES[pattern])
    return compute.is_valid(_seconds(compute.if_else(looks, texts, None), pattern)) if _any(looks) else looks


def _contradict(one: str, other: str) -> bool:
    """Whether two patterns differ in the order of day and month alone."""
    return one != other and {one[:6], other[:6]} == {"%m/%d/", "%d/%m/"}


def _reads(column: Any, pattern: str) -> bool:
    return _seconds(column, pattern).null_count == column.null_count


def _seconds(column: Any, pattern: str) -> Any:
    """Seconds since 1970, null where a text is no such date."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    if _OR in pattern:
        parts = {p: compute.if_else(_matches(column, _DATES[p]), column, None) for p in pattern.split(_OR)}
        return compute.coalesce(*(_seconds(part, p) for p, part in parts.items()))
    if pattern in UNIX:
        numbers = compute.if_else(_matches(column, _number_pattern("1234.5")), column, None)
        return compute.multiply(_numbers(numbers, "1234.5"), UNIX[pattern])
    if pattern not in (ISO, ISO_ZONE):
        column = compute.if_else(_matches(column, _DATES[pattern]), column, None)
        clock = any(hour in pattern for hour in ("%H", "%I")) and "%b" not in pattern.lower()
        texts = compute.replace_substring_regex(column, r"(\d)T(\d)", r"\1 \2") if clock else column
        stamps = _real(texts, compute.strptime(texts, format=pattern, unit="s", error_is_null=True), pattern)
        seconds = stamps.cast(arrow.int64()).cast(arrow.float64())
        # A time without a date is one of the first of January 1970.
        return compute.subtract(seconds, _MIDNIGHT) if pattern in _TIMES else seconds
    kind = arrow.timestamp("us", tz="UTC" if pattern == ISO_ZONE else None)
    try:
        return as_seconds(column.cast(kind))
    except arrow.ArrowInvalid:
        pass
    # One by one, as one wrong text spoils all.
    good = [_is_stamp(text, kind) for text in column.to_pylist()]
    return as_seconds(compute.if_else(arrow.chunked_array([arrow.array(good)]), column, None).cast(kind))


def _real(texts: Any, stamps: Any, pattern: str) -> Any:
    """Stamps without those of days that no calendar has: strptime takes the 31st of February for a day in March."""
    compute = need("pyarrow.compute", "tables")
    before, there, _ = pattern.partition("%d")
    if not there:
        return stamps
    numbers = len(re.findall("%[Yym]", before))
    found = compute.extract_regex(texts, rf"^(?:\D*\d+){{{numbers}}}\D*(?P<day>\d+)")
    day = compute.struct_field(found, "day").cast(need("pyarrow", "tables").int64())
    return compute.if_else(compute.equal(day, compute.day(stamps)), stamps, None)


def _is_stamp(text: str | None, kind: Any) -> bool:
    arrow = need("pyarrow", "tables")
    try:
        arrow.scalar(text, arrow.string()).cast(kind)
    except arrow.ArrowInvalid:
        return False
    return True


def _matches(column: Any, pattern: str) -> Any:
    return need("pyarrow.compute", "tables").match_substring_regex(column, f"^({pattern})$")


def _all(hits: Any) -> bool:
    return hits.null_count < len(hits) and bool(need("pyarrow.compute", "tables").all(hits).as_py())


def _any(hits: Any) -> bool:
    return bool(need("pyarrow.compute", "tables").any(hits).as_py())


def _count(hits: Any) -> int:
    return int(need("pyarrow.compute", "tables").sum(hits).as_py() or 0)
