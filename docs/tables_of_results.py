"""Tables of published figures and of what was measured, from the files in results/."""

import pathlib
from typing import Any

from leanbayes.reproduce.ledger import LEDGER, SYSTEMS, ids_of
from leanbayes.reproduce.result import (
    HOLDS,
    SHOWN,
    on_generated_data,
    published,
    read_result,
    spread,
    verdict_sentence,
)

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


def reproduced_text() -> str:
    """How many published figures and tables were run, and which of them fall short."""
    lines = ["| paper | figures and tables | run | hold | fall short | on generated data |"]
    lines.append("|---|---:|---:|---:|---|---|")
    for prefix, title in SYSTEMS.items():
        ids = ids_of(prefix)
        results = {id: result for id in ids if (result := read_result(RESULTS / f"{id}.json")) is not None}
        short = [_linked(id) for id, result in results.items() if result["verdict"] != HOLDS]
        generated = [_linked(id) for id, result in results.items() if on_generated_data(result)]
        cells = [len(ids), len(results), len(results) - len(short), ", ".join(short), ", ".join(generated)]
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _linked(id: str) -> str:
    """A result, with the way to its figures from README.md."""
    return f"[`{id}`](docs/results.md#{id})"


FINETUNE_METRICS = ("top-1, %", "ECE, %", "NLL, nats")


def finetune_table(path: pathlib.Path = RESULTS / "emp-finetune.json") -> str:
    """What tuning the patches of a trained network buys, on clean and on corrupted images."""
    result = read_result(path, SHOWN)
    if result is None:
        return f"There is no `results/{path.name}` yet."
    rows = result["rows"]
    metrics = [name + text for text in ("", ", corrupted images") for name in FINETUNE_METRICS]
    lines = [f"| network | {' | '.join(metrics)} |", "|---|" + "---:|" * len(metrics)]
    for name in dict.fromkeys(row["name"] for row in rows):
        found = {row["metric"]: spread(row["measured"]) for row in rows if row["name"] == name}
        if all(metric in found for metric in metrics):
            lines.append(f"| {name} | {' | '.join(found[metric] for metric in metrics)} |")
    verdict = verdict_sentence(result)
    if on_generated_data(result):
        verdict += " The images are generated, so the figures mean nothing."
    times = [f"{row['name']}: {spread(row['measured'])} %" for row in rows if row["metric"].startswith("time, %")]
    lines += ["", f"{verdict} Time over that of training, {'; '.join(times)}."]
    lines.append(f"`{result['command']}`, {result['date']}, {result['device']}. Source: `results/{path.name}`.")
    return "\n".join(lines)


# Columns of a table of one result: metrics, and what stands above them.
FACTOR_PRIORS = {
    "probability of a size below 0.1": "below 0.1",
    "probability of a size above 5": "above 5",
    "tail index, Hill": "tail index, Hill",
    "tail index over the same range, by integral": "by integral",
    "tail index in the limit": "in the limit",
}
RECORDS = {f"{name}, test": f"{name}" for name in ("NLL, nats", "AUC-PR", "ECE")} | {"parameters": "parameters"}


def result_table(id: str, head: str, metrics: dict[str, str], folder: pathlib.Path = RESULTS) -> str:
    """The figures of one result, a line for each name, the published ones in brackets."""
    result = read_result(folder / f"{id}.json", SHOWN)
    if result is None:
        return f"There is no `results/{id}.json` so far."
    lines = [f"| {head} | {' | '.join(metrics.values())} |", "|---|" + "---:|" * len(metrics)]
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        found = {row["metric"]: row for row in result["rows"] if row["name"] == name}
        lines.append(f"| {name} | {' | '.join(with_published(found.get(metric)) for metric in metrics)} |")
    verdict = verdict_sentence(result)
    if on_generated_data(result):
        verdict += " On generated data, so the figures cannot be compared with the published ones in brackets."
    lines += ["", verdict, f"`{result['command']}`, {result['date']}, {result['device']}. Source: `results/{id}.json`."]
    return "\n".join(lines)


def verdicts_table(prefix: str, folder: pathlib.Path = RESULTS) -> str:
    """What every result of one paper says, and which have none so far."""
    found = {id: read_result(folder / f"{id}.json") for id in ids_of(prefix)}
    lines = ["| result | what | verdict | preset |", "|---|---|---|---|"]
    for id, result in found.items():
        if result is not None:
            verdict = HOLDS if result["verdict"] == HOLDS else f"{result['verdict']}: {result['gap']}"
            lines.append(f"| [`{id}`](results.md#{id}) | {LEDGER[id]} | {verdict} | {result['preset']} |")
    missing = [f"`{id}`" for id, result in found.items() if result is None]
    return "\n".join([*lines, *(["", f"Without a result so far: {', '.join(missing)}."] if missing else [])])


def with_published(row: dict[str, Any] | None) -> str:
    """A measured figure, and the published one in brackets where there is one; empty without a row."""
    if row is None:
        return ""
    known = row["published"] is not None
    return spread(row["measured"]) + (f" ({published(row['published'])})" if known else "")
