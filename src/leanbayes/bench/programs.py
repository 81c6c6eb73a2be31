"""Results of the programs in benchmarks/ that the page on speed shows, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes._machine import versions_text
from leanbayes.bench.tables import judged

WIDE, DIGITS = "bench-wide-cuda.json", "bench-digits.json"


def wide_page(folder: Path) -> str:
    """Layers of a wide transformer block, and draws of their weights."""
    path = folder / WIDE
    if not path.exists():
        return _missing(path)
    result = json.loads(path.read_text("utf-8"))
    sizes = result["settings"]
    layers = [
        (
            row["name"],
            *(_ms(row["seconds"][kind]) for kind in ("local", "products")),
            judged(row, "local_over_products"),
            f"{row['local_over_plain']:.2f}",
        )
        for row in result["rows"]
    ]
    draws = [
        (row["name"], row["pass"], f"{1e6 * row['seconds']:.1f}", _ideal(row), judged(row, "draw_over_bytes"))
        for row in result["draws"]
    ]
    parts = [
        f"Forward and backward pass of dense layers with local reparameterisation, {sizes['rows']} sequences of "
        f"{sizes['tokens']} tokens in bfloat16, captured, compared with their matrix products alone: two in the "
        "forward pass and four in the backward pass, of matrices that are already in bfloat16.",
        _table(("layer", "ms", "products alone, ms", "ratio", "over a plain layer"), layers, 4),
        *_work(result["rows"]),
        "Draws of one weight by a kernel, compared with the time that a copy on the device takes to move as many bytes "
        "as the draw must read and write.",
        _table(("weight", "pass", "µs", "bytes alone, µs", "ratio"), draws, 3),
        _source(result, path),
    ]
    return "\n\n".join(parts)


def digits_page(folder: Path) -> str:
    """The comparison of the digits on both devices."""
    path = folder / DIGITS
    if not path.exists():
        return _missing(path)
    result = json.loads(path.read_text("utf-8"))
    devices = result["devices"]
    ratios = [name for name in result["rows"][0] if "_over_" in name]
    rows = [
        (
            row["name"],
            *(f"{row['seconds'][device]:.1f}" for device in devices),
            *(f"{row[ratio]:.2f}" for ratio in ratios),
        )
        for row in result["rows"]
    ]
    titles = ("", *(f"{name}, s" for name in devices.values()), *(name.replace("_", " ") for name in ratios))
    return "\n\n".join([_table(titles, rows, len(titles) - 1), _source(result, path)])


def _work(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Where the time of layers goes whose bound does not hold."""
    missed = [row for row in rows if "work" in row and not row.get("holds", True)]
    kinds = list(dict.fromkeys(kind for row in missed for kind in row["work"]["kinds"]))
    if not missed:
        return []
    table = [(row["name"], *(_ms(row["work"]["kinds"].get(kind, 0.0)) for kind in kinds)) for row in missed]
    return ["Where the time goes, in ms:", _table(("layer", *kinds), table, len(kinds))]


def _ideal(row: Mapping[str, Any]) -> str:
    return f"{1e6 * row['bytes'] / row['bandwidth']:.1f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    line = "|" + "---|" * (len(titles) - numbers) + "---:|" * numbers
    first, *others = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return "\n".join([first, line, *others])


def _source(result: Mapping[str, Any], path: Path) -> str:
    command = result["command"].replace(" --out results", "")
    where = f"{result['date']}, {result['device']}, {versions_text(result['versions'])}"
    return f"`{command}`, {where}. Source: `results/{path.name}`."


def _missing(path: Path) -> str:
    return f"There is no `results/{path.name}` yet."
