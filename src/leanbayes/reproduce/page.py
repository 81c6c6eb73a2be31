"""The results of a folder as one Markdown page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leanbayes._machine import versions_text
from leanbayes.reproduce.ledger import BEYOND, BEYOND_TITLE, LEDGER, SYSTEMS, ids_of
from leanbayes.reproduce.result import (
    FALLS_SHORT,
    HOLDS,
    NOT_JUDGED,
    SHOWN,
    on_generated_data,
    published,
    read_result,
    spread,
)

BENCHMARKS = {
    "bench-predict-loop": "Prediction with many samples against a loop over samples",
    "bench-predict-partly": "Prediction where only the end of the network is random",
    "bench-int8": "Rank-1 layers with their weights in eight bits, and in bfloat16",
    "bench-training": "Training through the engine against a bare loop",
    "bench-wide": "Local reparameterisation in a wide transformer block against its products, and a plain layer",
    "bench-digits": "`leanbayes compare digits` on a GPU and on a CPU",
}


def results_page(folder: Path, images: str) -> str:
    """An overview, every result of a folder with its figures, and the benchmarks.

    Args:
        folder: Of the result files.
        images: Where the page finds the pictures, as a relative address that ends in a slash.

    Returns:
        Markdown without a title.
    """
    sections = {title: ids_of(prefix) for prefix, title in SYSTEMS.items()}
    overview = ["## Overview"]
    blocks = []
    for title, ids in (sections | {BEYOND_TITLE: [*BEYOND]}).items():
        found = {id: result for id in ids if (result := read_result(folder / f"{id}.json", SHOWN)) is not None}
        overview += [f"**{title}**", _table(("result", "what", "verdict", "preset"), [_line(id, found) for id in ids])]
        if found:
            blocks += [f"## {title}", *(_result(result, folder, images) for result in found.values())]
    benchmarks = sorted(folder.glob("bench-*.json"))
    if benchmarks:
        overview.append("Times are [at the end](#speed).")
        blocks += ["## Speed", "Ratios of times: below 1, the first is faster.", *map(_benchmark, benchmarks)]
    return "\n\n".join(overview + blocks)


def _line(id: str, found: Mapping[str, dict[str, Any]]) -> tuple[str, str, str, str]:
    """One result in the overview, which leads to its figures."""
    what = (LEDGER | BEYOND)[id]
    if id not in found:
        return f"`{id}`", what, "no result yet", ""
    result = found[id]
    verdict = f"**{result['verdict']}**" if result["verdict"] == FALLS_SHORT else result["verdict"]
    return f"[`{id}`](#{id})", what, verdict + ", on generated data" * on_generated_data(result), result["preset"]


def _result(result: dict[str, Any], folder: Path, images: str) -> str:
    """One result: verdict, figures, checks, how it was made, picture."""
    id = result["id"]
    said = {HOLDS: "**Holds.**", NOT_JUDGED: "**Not judged:** a smoke run."}
    verdict = said.get(result["verdict"], f"**Falls short:** {result['gap']}.")
    if on_generated_data(result):
        verdict += " **On generated data,** so the figures cannot be compared with the published ones."
    rows = [
        (row["name"], row["metric"], published(row["published"]), spread(row["measured"]), str(len(row["measured"])))
        for row in result["rows"]
    ]
    parts = [
        f"### {id}",
        f"{result['title']}. {verdict}",
        _table(("what", "metric", "published", "measured", "n"), rows, numbers=3),
        "\n".join(f"- {'yes' if check['holds'] else 'no'}: {check['text']}" for check in result["checks"]),
        f"Preset {result['preset']}, {_source(result)}; mean ± standard deviation over seeds or networks, "
        f"{result['seconds']:.0f} s, not counting training that was already done.",
        "\n".join(f"- {note}" for note in result["notes"]),
    ]
    if (folder / f"{id}.png").exists():
        parts.append(f"![{result['title']}]({images}{id}.png)")
    return "\n\n".join(part for part in parts if part)


def _benchmark(path: Path) -> str:
    """One table of ratios."""
    result = json.loads(path.read_text("utf-8"))
    rows = result["rows"]
    ratios = [name for name, value in rows[0].items() if "_over_" in name and isinstance(value, float)]
    sizes = [name for name in ("samples", "batch") if name in rows[0]]
    table = _table(
        ("network", *sizes, *(name.replace("_", " ") for name in ratios)),
        [(row["name"], *(str(row[name]) for name in sizes), *(f"{row[name]:.2f}" for name in ratios)) for row in rows],
        numbers=len(sizes) + len(ratios),
    )
    return "\n\n".join(
        [f"### {BENCHMARKS.get(result['id'], result['id'])}, {result['device']}", table, f"{_source(result)}."]
    )


def _source(result: dict[str, Any]) -> str:
    # Where its files went is of no interest to others.
    command = re.sub(r" --out \S+", "", result["command"])
    return f"`{command}`, {result['date']}, {result['device']}, {versions_text(result['versions'])}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """A Markdown table; the last columns that hold `numbers` are aligned to the right."""
    lines = [titles, ["---"] * (len(titles) - numbers) + ["---:"] * numbers, *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
