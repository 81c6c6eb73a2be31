"""The results of the board as Markdown; every sentence that depends on a result is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from leanbayes.board.contender import LEVEL
from leanbayes.board.networks import ENSEMBLE, LAPLACE, LEAN, PLAIN
from leanbayes.board.ours import OURS
from leanbayes.board.sets import CLASSES, REGRESSION
from leanbayes.board.summary import ranks
from leanbayes.reproduce.result import SHOWN, on_generated_data, read_result, verdict_sentence

TABLES, NETWORKS = "board-tables", "board-networks"
_DEFAULT = "default"
# By contender and data set; None where there is no figure.
Figures = Mapping[str, Mapping[str, float | None]]
_COVERAGE = "distance from the stated coverage"
# Metrics of a kind of table, what stands above them, and whether more is better.
_REGRESSION = {"log density": ("log density", True), "rmse": ("RMSE", False), _COVERAGE: ("coverage", False)}
_CLASSES = {"nll": ("NLL", False), "accuracy": ("accuracy", True), "ece": ("ECE", False)}
_COST = {"seconds": ("seconds", False)}


def tables_page(folder: Path, images: str) -> str:
    """Ranks of all contenders on tables, their log densities and NLLs, and the picture.

    Args:
        folder: Of the result files.
        images: Where the page finds the pictures, as a relative address that ends in a slash.
    """
    result = _read(folder, TABLES)
    if result is None:
        return _absent(TABLES)
    titles, means = result["figure"]["titles"], _with_coverage(result["figure"]["means"])
    regression, classes = _tables(result)
    groups = ((regression, _REGRESSION), (classes, _CLASSES), ([*regression, *classes], _COST))
    parts = [
        _ranks_text(len(regression) + len(classes), "tables"),
        _ranks_table(titles, [(m, names, *about) for names, by in groups if names for m, about in by.items()], means),
    ]
    for names, metric, text in ((regression, "log density", "Mean log density, in nats"), (classes, "nll", "NLL")):
        if names:
            shown = {name: (REGRESSION | CLASSES)[name] for name in names}
            higher = metric == "log density"
            parts += [f"{text}; the best of each table is bold:", _figures_table(titles, shown, means[metric], higher)]
    return "\n\n".join([*parts, *_ending(result, folder, images)])


def networks_page(folder: Path, images: str) -> str:
    """Ranks of all methods on images and text, their figures on each set, and the picture; arguments as above."""
    result = _read(folder, NETWORKS)
    if result is None:
        return _absent(NETWORKS)
    titles, sets, means = (result["figure"][name] for name in ("titles", "sets", "means"))
    columns = [(metric, list(sets), *about) for metric, about in (_CLASSES | _COST).items()]
    parts = [_ranks_text(len(sets), "sets"), _ranks_table(titles, columns, means)]
    for place, title in sets.items():
        network = result["figure"]["networks"].get(place, "-")
        parts += [f"{title}, network `{network}`:", _set_table(titles, means, place)]
    return "\n\n".join([*parts, *_ending(result, folder, images)])


def better_page(folder: Path) -> str:
    """Where something else than a method of this library, or than a lean one, is the better choice."""
    parts = []
    for id, better in ((TABLES, _better_on_tables), (NETWORKS, _better_than_lean)):
        result = _read(folder, id)
        parts.append(_absent(id) if result is None or on_generated_data(result) else better(result))
    return "\n\n".join(parts)


def _read(folder: Path, id: str) -> dict[str, Any] | None:
    return read_result(folder / f"{id}.json", (*SHOWN, "figure"))


def _absent(id: str) -> str:
    return f"There is no result for `{id}` on real data yet; `leanbayes reproduce {id}` produces it."


def _tables(result: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    names = list(result["figure"]["tables"])
    return [name for name in names if name in REGRESSION], [name for name in names if name in CLASSES]


def _with_coverage(means: Mapping[str, Figures]) -> dict[str, Figures]:
    """The same, with how far the intervals' coverage is from what they state."""
    far = {
        name: {table: None if share is None else abs(share - LEVEL) for table, share in by.items()}
        for name, by in means.get("coverage", {}).items()
    }
    return {**means, _COVERAGE: far}


def _places(figures: Figures, names: Sequence[str], higher: bool) -> dict[str, tuple[float, int, int]]:
    board = {one: {name: None if v is None else [v] for name, v in by.items()} for one, by in figures.items()}
    return ranks(board, names, higher)


def _ranks_text(count: int, what: str) -> str:
    return (
        f"Mean ranks over {count} {what}: 0 is the best of the contenders that were run, 1 the worst. In brackets, the "
        f"number of {what} won, out of those with a figure:"
    )


def _ranks_table(titles: Mapping[str, str], columns: Sequence[tuple[str, Sequence[str], str, bool]], means: Any) -> str:
    """One line per contender, ordered by its mean rank in the metrics of whole distributions."""
    places = {metric: _places(means[metric], names, higher) for metric, names, _, higher in columns}
    order: dict[str, float] = {}
    for name in titles:
        found = [places[m][name] for m in ("log density", "nll") if name in places.get(m, {})]
        total = sum(count for _, count, _ in found)
        order[name] = sum(rank * count for rank, count, _ in found) / total if total else 2.0
    lines = []
    for name in sorted(titles, key=order.__getitem__):
        found = [places[metric].get(name) for metric, *_ in columns]
        lines.append([titles[name], *("-" if f is None else f"{f[0]:.2f}&nbsp;({f[2]}/{f[1]})" for f in found)])
    return _table(["", *(title for _, _, title, _ in columns)], lines)


def _figures_table(titles: Mapping[str, str], names: Mapping[str, str], figures: Figures, higher: bool) -> str:
    best = {name: _best(figures, name, higher) for name in names}
    lines = []
    for one, title in titles.items():
        values = [figures.get(one, {}).get(name) for name in names]
        cells = ["-" if value is None else f"{value:.3f}" for value in values]
        lines.append([title, *(f"**{c}**" if best[n] == one else c for n, c in zip(names, cells))])
    return _table(["", *names.values()], lines)


def _set_table(titles: Mapping[str, str], means: Any, place: str) -> str:
    shown = {"accuracy": "{:.2%}", "nll": "{:.4f}", "ece": "{:.4f}", "overhead": "{:.3f}x", "seconds": "{:.0f} s"}
    heads = {"overhead": "parameters", "seconds": "training", "nll": "NLL", "ece": "ECE"}
    lines = []
    for name, title in titles.items():
        values = {metric: means[metric].get(name, {}).get(place) for metric in shown}
        cells = ["-" if values[metric] is None else form.format(values[metric]) for metric, form in shown.items()]
        lines.append([title, *cells])
    return _table(["method", *(heads.get(metric, metric) for metric in shown)], lines)


def _best(figures: Figures, name: str, higher: bool) -> str | None:
    """Who is best on a data set."""
    known = {one: value for one, by in figures.items() if (value := by.get(name)) is not None}
    return (max if higher else min)(known, key=known.__getitem__) if known else None


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _ending(result: Mapping[str, Any], folder: Path, images: str) -> list[str]:
    """Verdict, notes, source and picture."""
    verdict = verdict_sentence(result)
    if on_generated_data(result):
        verdict += " The data are generated, so the figures mean nothing."
    id = result["id"]
    source = f"`{result['command']}`, preset {result['preset']}, {result['date']}, {result['device']}. "
    parts = [f"{verdict} {source}Source: `results/{id}.json`.", "\n".join(f"- {note}" for note in result["notes"])]
    if (folder / f"{id}.png").exists():
        parts.append(f"![{result['title']}]({images}{id}.png)")
    return [part for part in parts if part]


def _better_on_tables(result: Mapping[str, Any]) -> str:
    titles, means = result["figure"]["titles"], result["figure"]["means"]
    regression, classes = _tables(result)
    whole = [("log density", name, True) for name in regression] + [("nll", name, False) for name in classes]
    point = [("rmse", name, False) for name in regression] + [("accuracy", name, True) for name in classes]
    parts = []
    for what, each in (("log density or NLL", whole), ("RMSE or accuracy", point)):
        lines = [line for one in each if (line := _elsewhere(titles, means, *one)) is not None]
        if lines:
            parts += [f"By {what}, something else is best on {len(lines)} of {len(each)} tables:", "\n".join(lines)]
        else:
            parts.append(f"By {what}, a method of this library is best on each of the {len(each)} tables.")
    quicker = _quicker(titles, means["seconds"])
    if quicker:
        parts += ["If training and prediction have to be quick, average seconds for a split:", quicker]
    return "\n\n".join(parts)


def _elsewhere(titles: Mapping[str, str], means: Any, metric: str, table: str, higher: bool) -> str | None:
    """Who is best on a table, and what our best has; None where that is the same."""
    best = _best(means[metric], table, higher)
    if best is None or best in OURS:
        return None
    own = _best({name: by for name, by in means[metric].items() if name in OURS}, table, higher)
    text = f"- {(REGRESSION | CLASSES)[table]}: {titles[best]}, {means[metric][best][table]:#.4g}"
    return text if own is None else f"{text}; {titles[own]} has {means[metric][own][table]:#.4g}"


def _quicker(titles: Mapping[str, str], seconds: Figures) -> str:
    """What takes less time than the default on the tables that both were run on, one on a line."""
    found = []
    for name in titles:
        if name in OURS:
            continue
        pairs = [
            (value, own)
            for table, value in seconds[name].items()
            if value is not None and (own := seconds.get(_DEFAULT, {}).get(table)) is not None
        ]
        if pairs and (mean := fmean(a for a, _ in pairs)) < (own := fmean(b for _, b in pairs)):
            text = f"- {titles[name]}: {mean:.3g} s; on the same tables, the default takes {own:.3g} s"
            found.append((mean / own, text))
    return "\n".join(text for _, text in sorted(found))


def _better_than_lean(result: Mapping[str, Any]) -> str:
    """Sets on which plain training, an ensemble or Laplace is the better choice than a lean method."""
    titles, sets, means, lean = (result["figure"][name] for name in ("titles", "sets", "means", "lean"))
    lines = []
    for place, title in sets.items():
        if not lean[place]:  # nothing to compare
            continue
        nll = {name: value for name, by in means["nll"].items() if (value := by.get(place)) is not None}
        best = next(iter(lean[place]))
        if all(["nll", PLAIN] in one["unclear"] for one in lean[place].values()):
            lines.append(
                f"- {title}, the plain network: no method of at most {LEAN} times the parameters has an NLL that is "
                f"clearly lower; the lowest is that of {titles[best]}, {nll[best]:.4f} against {nll[PLAIN]:.4f}."
            )
        for other in (ENSEMBLE, LAPLACE):
            if nll.get(other, nll[best]) < nll[best]:
                size = means["overhead"][other][place]
                lines.append(
                    f"- {title}, {titles[other]}: NLL {nll[other]:.4f} with {size:.2f} times the parameters; "
                    f"{titles[best]}, the best of at most {LEAN} times, has {nll[best]:.4f}."
                )
    if not any(lean.values()):
        return "On images and text, nothing can be said yet: methods are missing."
    if not lines:
        return f"On images and text, a method of at most {LEAN} times the parameters has the lowest NLL on every set."
    return "\n\n".join(["On images and text:", "\n".join(lines)])
