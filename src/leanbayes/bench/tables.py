"""Results as lines of a terminal and as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leanbayes._machine import versions_text
from leanbayes.bench.contenders import CONTENDERS
from leanbayes.bench.peers import PEERS
from leanbayes.bench.result import DONE, FAILED, MADE, PLAIN

_WORDS = {
    "step": "step",
    "predict": "prediction",
    "memory": "memory of a step",
    "profile": "work of a step",
    "start": "start of a step",
}
# Not in the table of costs.
_APART = ("profile", "start", "scaling")
Row = Mapping[str, Any]
Column = tuple[str, str, int | None]


def line_of(row: Row) -> str:
    """One row in words.

    Example:
        >>> line_of(
        ...     {
        ...         "contender": "emp",
        ...         "mode": "eager",
        ...         "part": "step",
        ...         "status": "done",
        ...         "ratio": 1.25,
        ...         "seconds": 0.004,
        ...         "at_most": 1.3,
        ...         "holds": True,
        ...     }
        ... )
        'emp, step, eager: 4.000 ms, 1.25x plain (at most 1.30: yes)'
    """
    text = f"{row['contender']}, {_what(row)}, {row['mode']}: "
    if row["status"] != DONE:
        return f"{text}{row['status']}, {row['reason']}"
    if row["part"] == "start":
        return f"{text}{row['startup_s']:.0f} s"
    size = f"{row['bytes'] / 1e6:.0f} MB" if "seconds" not in row else f"{1000 * row['seconds']:.3f} ms"
    text += f"{size}, {row['ratio']:.2f}x plain"
    if "over_ours" in row:
        text += f", {row['over_ours']:.2f}x ours"
    for name, words in (("at_most", "at most"), ("at_least", "at least")):
        if name in row:
            text += f" ({words} {row[name]:.2f}: {'yes' if row['holds'] else 'no'})"
    if "startup_s" in row:
        text += f", first after {row['startup_s']:.0f} s{' (compiled before)' if row['startup_cached'] else ''}"
    return text


def _what(row: Row) -> str:
    if row["part"] == "scaling":
        return f"{row['axis']} {row['value']}"
    return f"{row['samples']}-sample prediction" if row.get("samples") else _WORDS[row["part"]]


def figures_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Lines that sum a result up: how many bounds hold, and which do not."""
    stated = [row for row in result["rows"] if "holds" in row]
    if stated:
        held = sum(row["holds"] for row in stated)
        yield f"{held} of {len(stated)} stated bounds hold"
    yield from (f"not: {line_of(row)}" for row in stated if not row["holds"])
    yield from (line_of(row) for row in result["rows"] if row["status"] == FAILED)


def contender_table(
    result: Mapping[str, Any], names: Sequence[str] | None = None, only: Sequence[Column] | None = None
) -> str:
    """What each method costs, as multiples of the plain network that is run the same way; bounds in brackets.

    Args:
        result: The content of a result file.
        names: The contenders to show; all of ours where None.
        only: The columns to show, each a part, a mode and a number of samples; all where None.
    """
    ours = [row for row in result["rows"] if "package" not in row and row["part"] not in _APART]
    # Several runs may have added them in any order.
    measured = sorted({row["contender"] for row in ours} - {PLAIN}, key=_place)
    shown = measured if names is None else [name for name in names if name in measured]
    columns = {key: title for key, title in _columns(ours).items() if only is None or key in only}
    found = {(row["contender"], *_column(row)): row for row in ours}
    lines = [f"| method | parameters | {' | '.join(columns.values())} |", "|---|" + "---:|" * (len(columns) + 1)]
    for name in shown:
        rows = [row for row in ours if row["contender"] == name]
        if all(row["status"] != DONE for row in rows):
            lines.append(f"| {name} | {rows[0]['status']}: {rows[0]['reason']} |" + " |" * len(columns))
            continue
        size = next((row["parameters"] for row in rows if "parameters" in row), None)
        overhead = "" if size is None else f"{size / result['plain_parameters']:.3f}x"
        cells = [_cell(found.get((name, *column))) for column in columns]
        lines.append(f"| `{name}` | {overhead} | {' | '.join(cells)} |")
    plain = [_absolute(found.get((PLAIN, *column))) for column in columns]
    lines.append(f"| plain network | {result['plain_parameters']:,} | {' | '.join(plain)} |")
    return "\n".join(lines)


def _place(name: str) -> tuple[int, str]:
    known = list(CONTENDERS)
    return known.index(name) if name in known else len(known), name


def start_up_text(result: Mapping[str, Any]) -> str:
    """Seconds until captured steps run at their speed, of what was compiled from scratch; empty where nothing was."""
    rows = [row for row in result["rows"] if row["status"] == DONE and not row.get("startup_cached", True)]
    apart = {row["contender"] for row in rows if row["part"] == "start"}
    rows = [row for row in rows if row["part"] == "start" or row["contender"] not in apart]
    if not rows:
        return ""
    limit = next((f", at most {row['startup_at_most']:.0f}" for row in rows if "startup_at_most" in row), "")
    texts = []
    for row in sorted(rows, key=lambda row: _place(row["contender"])):
        held = row.get("startup_holds", True)
        seconds = f"{row['startup_s']:.0f}"
        texts.append(f"`{row['contender']}` {seconds if held else f'**{seconds}**'}")
    return f"Seconds until captured steps run, compiling included{limit}: {', '.join(texts)}."


def profile_table(result: Mapping[str, Any], mode: str) -> str:
    """What the device works on in a step, in ms: of the plain network, and how much more of each kind in a method.

    Where bounds are stated, of the methods that miss theirs. Empty where none of these was profiled in that mode.

    Args:
        result: The content of a result file.
        mode: "eager" or "captured".
    """
    rows = [row for row in result["rows"] if (row["part"], row["mode"]) == ("profile", mode) and row["status"] == DONE]
    stated = [row for row in result["rows"] if (row["part"], row["mode"]) == ("step", mode) and "at_most" in row]
    if stated:
        missed = {PLAIN, *(row["contender"] for row in stated if not row["holds"])}
        rows = [row for row in rows if row["contender"] in missed]
    rows.sort(key=lambda row: (row["contender"] != PLAIN, _place(row["contender"])))
    if all(row["contender"] == PLAIN for row in rows):
        return ""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["kinds"]))
    lines = [f"| | {' | '.join(kinds)} | all work | waiting | launches |", "|---|" + "---:|" * (len(kinds) + 3)]
    for row in rows:
        more = row["contender"] != PLAIN
        values = [_more(row["kinds"].get(kind, 0.0), row["plain_kinds"].get(kind, 0.0), more) for kind in kinds]
        values.append(_more(row["busy"], row["plain_busy"], more))
        values.append(_more(_wait(row), _wait(row, "plain_"), more))
        name = f"`{row['contender']}`" if more else "plain network"
        lines.append(f"| {name} | {' | '.join(values)} | {row['launches']:.0f} |")
    return "\n".join(lines)


def _wait(row: Row, whose: str = "") -> float:
    """How much longer a step takes than the work in it."""
    return max(0.0, row[f"{whose}seconds"] - row[f"{whose}busy"])


def _more(seconds: float, plain: float, more: bool) -> str:
    return f"{1000 * (seconds - plain):+.2f}" if more else f"{1000 * seconds:.2f}"


def peer_table(result: Mapping[str, Any]) -> str:
    """How many times as long other libraries take as ours of the same family; empty where none was measured."""
    rows = [row for row in result["rows"] if "package" in row]
    done = [row for row in rows if row["status"] == DONE]
    if not done:
        return ""
    columns = _columns(done)
    found = {(row["contender"], *_column(row)): row for row in done}
    lines = [f"| library | compared with | {' | '.join(columns.values())} |", "|---|---|" + "---:|" * len(columns)]
    for name in dict.fromkeys(row["contender"] for row in rows):
        mine = [row for row in rows if row["contender"] == name]
        against = next((row["ours"] for row in mine if "ours" in row), None)
        if against is None:
            lines.append(f"| {name} | {mine[0]['reason']} |" + " |" * len(columns))
            continue
        title = f"{name} {mine[0]['version'] or ''}".strip()
        cells = [_cell(found.get((name, *column)), "over_ours") for column in columns]
        lines.append(f"| {title} | `{against}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def source_of(result: Mapping[str, Any], path: str, commands: bool = True) -> str:
    """How a result was made; without the commands, on which days."""
    sizes = result["settings"]
    runs = _runs(result)
    # The rounds of several runs stand in their commands.
    rounds = f"of {sizes['repeats']} rounds" if len(runs) == 1 else "over rounds"
    return (
        f"{result['title']}, steps of {sizes['batch']} and predictions of {sizes['rows']} rows, precision "
        f"{sizes['precision']}; medians {rounds}. {_made(runs, result['device'], commands)}. Source: `{path}`."
    )


def _runs(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What rows come from: command, date and versions of each run."""
    now = {name: result.get(name) for name in MADE}
    found: list[Mapping[str, Any]] = []
    for row in result["rows"]:
        if (made := row.get("made", now)) not in found:
            found.append(made)
    return found or [now]


def _made(runs: Sequence[Mapping[str, Any]], device: str, commands: bool) -> str:
    """The commands, each with its day, and the machine; versions once where all runs have the same."""
    if not commands:
        return ", ".join([device, " and ".join(sorted({run["date"] for run in runs})), _versions(runs[-1])])
    known = [_versions(run) for run in runs]
    same = len(set(known)) == 1
    texts = [
        f"`{run['command']}`, {run['date']}" + ("" if same else f" ({versions})") for run, versions in zip(runs, known)
    ]
    return f"{'; '.join(texts)}, {device}" + (f", {known[0]}" if same else "")


def _versions(run: Mapping[str, Any]) -> str:
    """Versions, without those of other libraries, which have rows of their own."""
    others = {peer.package for peer in PEERS}
    return versions_text({name: version for name, version in run["versions"].items() if name not in others})


def _column(row: Row) -> Column:
    return row["part"], row["mode"], row.get("samples")


def _columns(rows: Sequence[Row]) -> dict[Column, str]:
    """The columns that a result has figures for, in the order of the parts, captured ones first."""
    parts = list(_WORDS)
    keys = {_column(row) for row in rows if row["status"] == DONE and row["part"] not in _APART}
    order = sorted(keys, key=lambda key: (parts.index(key[0]), key[1], key[2] or 0))
    return {key: f"{f'{key[2]}-sample prediction' if key[2] else _WORDS[key[0]]}, {key[1]}" for key in order}


def _cell(row: Row | None, ratio: str = "ratio") -> str:
    if row is None or row["status"] != DONE:
        return "" if row is None else row["status"]
    return judged(row, ratio)


def judged(row: Row, ratio: str = "ratio") -> str:
    """A ratio with its bound, where one is stated, in brackets; bold where it is missed.

    Example:
        >>> judged({"ratio": 1.25, "at_most": 1.2, "holds": False})
        '**1.25** (≤ 1.20)'
    """
    text = f"{row[ratio]:.2f}"
    if "holds" not in row:
        return text
    limit = f"≤ {row['at_most']:.2f}" if "at_most" in row else f"≥ {row['at_least']:.2f}"
    return f"{text} ({limit})" if row["holds"] else f"**{text}** ({limit})"


def _absolute(row: Row | None) -> str:
    if row is None or row["status"] != DONE:
        return ""
    return f"{row['bytes'] / 1e6:,.0f} MB" if "seconds" not in row else f"{1000 * row['seconds']:.3g} ms"
