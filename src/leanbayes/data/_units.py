"""Units beside numbers, such as "5 kg", "EUR 3.20" and "12 %"."""

from __future__ import annotations

import re
from typing import Any

from leanbayes.data._extras import need

# Symbols, which numbers are read with and without.
SYMBOLS = "€$£¥₹₩₽₺₴₪฿%"
CODES = (
    "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "CAD", "AUD", "NZD", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF",
    "RON", "TRY", "BRL", "MXN", "ZAR", "SGD", "HKD", "KRW", "R$", "US$", "Rs.", "Rs", "kr",
)  # fmt: skip
_BLANK = r"[\s\x{a0}\x{202f}]"
# Before a number, other letters belong to a code or a name: A 12, Room 5.
_BEFORE = "|".join(map(re.escape, CODES))
NUMBER = r"[+\-\x{2212}]?[\d.,](?:[\d.,'’\x{a0}\x{202f} ]*\d)?(?:[eE][+-]?\d+)?"
# Words and symbols, with a power at the end at most: km/h, sq ft, µg/dL, m², kg/m3.
_AFTER = r"[\pL°][^\d,;:()]{0,14}[23]?"
_PARTS = rf"^(?P<before>{_BEFORE})?{_BLANK}?(?P<number>{NUMBER}){_BLANK}?(?P<after>{_AFTER})?$"
# Units of one quantity: those that stand together in a column can mean nothing else.
_FAMILIES = (
    {"km": 1000.0, "m": 1.0, "cm": 0.01, "mm": 0.001},
    {"kg": 1000.0, "g": 1.0, "mg": 0.001},
    {"l": 1.0, "L": 1.0, "dl": 0.1, "cl": 0.01, "ml": 0.001},
    {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001},
    {"tb": 1e12, "gb": 1e9, "mb": 1e6, "kb": 1e3},
)
_FEW = 100


def find_unit(column: Any) -> str:
    """The unit of most texts of a column; empty where most are no numbers with a unit.

    Args:
        column: Array of texts; null where a value is missing.

    Example:
        >>> import pyarrow as pa
        >>> find_unit(pa.chunked_array([["5 kg", "3.2 kg", "unknown"]])), find_unit(pa.chunked_array([["A 5", "A 6"]]))
        ('kg', '')
    """
    known = column.drop_null()
    found = ""
    for sample in (known.slice(0, _FEW), known):  # a few tell most columns of other texts
        # "R$" before the dollar that is in it.
        found = _most_frequent(sample) or next((symbol for symbol in SYMBOLS if _all_have(sample, symbol)), "")
        if not found:
            break
    return found


def in_unit(column: Any, unit: str) -> tuple[Any, Any]:
    """Texts of a column without their unit, null where it is neither this one nor converts; and their factors."""
    arrow, compute = need("pyarrow", "tables"), need("pyarrow.compute", "tables")
    if unit in SYMBOLS:
        return compute.if_else(compute.match_substring(column, unit), column, None), arrow.scalar(1.0)
    numbers, units = _split(column)
    others = [other for other in compute.unique(units).to_pylist() if other]
    factors = {other: factor for other in others if (factor := _factor(other, unit)) is not None}
    place = compute.index_in(units, value_set=arrow.array(list(factors), arrow.string()))
    factor = compute.take(arrow.array(list(factors.values()), arrow.float64()), place)
    return compute.if_else(compute.is_valid(place), numbers, None), factor


def mixed_symbols(column: Any) -> list[str]:
    """Symbols that some texts of a column have and others do not.

    Example:
        >>> import pyarrow as pa
        >>> mixed_symbols(pa.chunked_array([["5%", "0.05", "$5"]])), mixed_symbols(pa.chunked_array([["5%", "6%"]]))
        (['$', '%'], [])
    """
    compute = need("pyarrow.compute", "tables")
    known = column.drop_null()
    hits = {symbol: compute.match_substring(known, symbol) for symbol in SYMBOLS}
    return [symbol for symbol, hit in hits.items() if compute.any(hit).as_py() and not compute.all(hit).as_py()]


def _split(column: Any) -> tuple[Any, Any]:
    """The number and the unit of each text; the unit is empty where there is none or one on both sides."""
    compute = need("pyarrow.compute", "tables")
    parts = compute.extract_regex(column, _PARTS)
    before, number, after = (compute.struct_field(parts, name) for name in ("before", "number", "after"))
    both = compute.and_(compute.not_equal(before, ""), compute.not_equal(after, ""))
    unit = compute.utf8_trim_whitespace(compute.binary_join_element_wise(before, after, ""))
    return number, compute.if_else(both, "", unit)


def _all_have(column: Any, symbol: str) -> bool:
    compute = need("pyarrow.compute", "tables")
    return len(column) > 0 and bool(compute.all(compute.match_substring(column, symbol)).as_py())


def _most_frequent(column: Any) -> str:
    """The unit of at least half of the texts."""
    compute = need("pyarrow.compute", "tables")
    counts = compute.value_counts(_split(column)[1].drop_null()).to_pylist()
    best = max(counts, key=lambda pair: (pair["counts"], pair["values"]), default={"values": "", "counts": 0})
    return best["values"] if 2 * best["counts"] >= len(column) else ""


def _factor(other: str, unit: str) -> float | None:
    """What a number in another unit is multiplied by, None where that is not certain.

    Example:
        >>> _factor("m", "km"), _factor("KG", "kg"), _factor("year", "years"), _factor("m", "min")
        (0.001, 1.0, 1.0, None)
    """
    shorter, longer = sorted((other, unit), key=len)
    if other == unit or (len(shorter) > 1 and longer == f"{shorter}s"):
        return 1.0
    one, two = (name if len(name) == 1 else name.lower() for name in (other, unit))
    return next((family[one] / family[two] for family in _FAMILIES if one in family and two in family), None)
