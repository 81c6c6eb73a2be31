"""The results of a folder as Markdown: everything for the page on speed, the stated bounds for the first page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanbayes.bench.bounds import BATCH, BY_ESTIMATOR, LARGE, PEER, RESNET18, ROWS, SAMPLES, START_UP, STATED
from leanbayes.bench.networks import NETWORKS
from leanbayes.bench.result import DONE, PLAIN, read
from leanbayes.bench.steps import MODES
from leanbayes.bench.tables import contender_table, peer_table, profile_table, source_of, start_up_text

# The result that the bounds are stated for, and the columns that they are stated in.
_FIRST = "speed-resnet18-cuda-bf16.json"
_COLUMNS = (
    ("step", "captured", None),
    ("step", "eager", None),
    ("predict", "captured", SAMPLES),
    ("memory", "captured", None),
)


def speed_summary(folder: Path) -> str:
    """The methods with stated bounds on the network that they are stated for; empty where that was not measured."""
    path = folder / _FIRST
    if not path.exists():
        return ""
    result = read(path)
    shown = [
        row
        for row in result["rows"]
        if row["contender"] in (PLAIN, *STATED) and (row["part"], row["mode"], row["samples"]) in _COLUMNS
    ]
    source = source_of(result | {"rows": shown}, f"results/{path.name}", commands=False)
    return "\n\n".join([contender_table(result, STATED, _COLUMNS), source])


def bounds_table() -> str:
    """The stated bounds, and for what they are stated."""
    titles = ("step, captured", "step, eager", f"{SAMPLES}-sample prediction, captured", "memory of a step, captured")
    lines = [f"| method | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    for name, line in (RESNET18 | {f"any other `/{kind}`": line for kind, line in BY_ESTIMATOR.items()}).items():
        title = f"`{name}`" if name in RESNET18 else name
        lines.append(f"| {title} | {' | '.join(f'{value:.2f}' for value in line)} |")
    large = [
        f"{NETWORKS[name].title} with `{method}` within {limit:.2f} at a batch of {batch}"
        for (name, method), (batch, limit) in LARGE.items()
    ]
    text = (
        f"They apply to {NETWORKS['resnet18'].title} in bfloat16 on a GPU, with steps of {BATCH} and predictions of "
        f"{ROWS} rows. Captured steps of larger networks should stay close to the plain network as well: "
        f"{', '.join(large)}. "
        f"Captured steps of {NETWORKS['resnet18'].title} should run within {START_UP:g} s, compiling included. "
        f"Other libraries of the same posterior family should take at least {PEER:g} times as long as ours runs by "
        "default: captured on a GPU, eager on a CPU."
    )
    return "\n".join([*lines, "", text])


def speed_page(folder: Path, images: str) -> str:
    """Every result with its tables and picture; empty where there is none.

    Args:
        folder: Of the result files.
        images: Where the page finds the pictures, as a relative address that ends in a slash.
    """
    paths = [path for name in NETWORKS for path in sorted(folder.glob(f"speed-{name}-*.json"))]
    return "\n\n".join(_section(path, read(path), images) for path in paths)


def _section(path: Path, result: dict[str, Any], images: str) -> str:
    peers = peer_table(result)
    parts = [f"### {result['title']}, {result['device']}, {_precision(result)}", contender_table(result)]
    if peers:
        parts += ["Times of other libraries, as multiples of ours:", peers]
    for mode in MODES:
        profile = profile_table(result, mode)
        if profile:
            parts += [
                f"Where the time of a step goes, {mode}: ms for the plain network, and what each method adds:",
                profile,
            ]
    parts += [start_up_text(result), _reasons(result), source_of(result, f"results/{path.name}")]
    picture = path.with_suffix(".png")
    if picture.exists():
        parts.append(f"![What methods cost: {result['title']}]({images}{picture.name})")
    return "\n\n".join(part for part in parts if part)


def _precision(result: dict[str, Any]) -> str:
    return {"32": "32 bits", "bf16": "bfloat16"}[result["settings"]["precision"]]


def _reasons(result: dict[str, Any]) -> str:
    """Why some figures are missing, one line for each reason."""
    rows = [row for row in result["rows"] if row["status"] != DONE]
    found = dict.fromkeys((row["contender"], row["status"], row["reason"]) for row in rows)
    return "\n".join(f"- {name}: {status}, {reason}" for name, status, reason in found)
