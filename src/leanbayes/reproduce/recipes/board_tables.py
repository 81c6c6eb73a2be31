"""board-tables: the default estimators against what else a user would pick, on tables."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from leanbayes.bench.peers.adapter import NotInstalled
from leanbayes.board.contender import Contender
from leanbayes.board.ours import OURS
from leanbayes.board.rivals import RIVALS
from leanbayes.board.scores import class_scores, regression_scores
from leanbayes.board.sets import CLASSES, REGRESSION, Split, class_split, regression_split, split_count
from leanbayes.board.summary import difference, mean_of, ranks
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

CONTENDERS: dict[str, Contender] = OURS | RIVALS
_GENERATED_ROWS = 60
# Tables that take longest, done first so that several processes end at about the same time: Gaussian processes of ten
# classes, and the most rows.
_SLOWEST = ("digits", "protein-tertiary-structure", "naval-propulsion-plant", "power-plant", "kin8nm")
# Whether more is better.
_REGRESSION = {"log density": True, "rmse": False, "coverage": None, "seconds": False}
_CLASSES = {"nll": False, "accuracy": True, "ece": False, "seconds": False}
_UNITS = {
    "log density": "log density, nats",
    "rmse": "RMSE",
    "nll": "NLL, nats",
    "ece": "ECE",
    "coverage": "90 % interval",
}
# Of nine tables: on how many the default has to win, and on how many to be near a Gaussian process.
_MOST, _NEAR_SHARE, _NEAR = 6 / 9, 4 / 9, 0.1
_COVERAGE, _EACH_COVERAGE = (0.87, 0.93), (0.80, 0.97)


def measure(run: Run) -> Outcome:
    """Train every contender on every split of every table."""
    s = run.settings
    kinds = {name: "regression" for name in s["regression"]} | {name: "classes" for name in s["classes"]}
    names = [name for name in CONTENDERS if name in s["contenders"]]
    pieces = {
        f"{table}-{name}-split{number}": (kind, table, name, number)
        for table, kind in sorted(kinds.items(), key=lambda item: (*_SLOWEST, item[0]).index(item[0]))
        for name in names
        if getattr(CONTENDERS[name], "regress" if kind == "regression" else "classify") is not None
        and not _is_left_to_a_gpu(run, kind, table, CONTENDERS[name])
        for number in range(split_count(table, s["splits"]))
    }
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for piece, one in run.decided_by(_by_name).units(_scores, pieces).items():
        _, table, name, _ = pieces[piece]
        found.setdefault((table, name), []).append(one)
        if one.get("missing"):
            run.note(f"{CONTENDERS[name].title} was not run: {one['missing']}")
        if one.get("failed"):
            run.note(f"{CONTENDERS[name].title} failed on {table}: {one['failed']}")
    board = {
        metric: {name: {table: _values(found, table, name, metric) for table in tables} for name in names}
        for tables, metrics in ((s["regression"], _REGRESSION), (s["classes"], _CLASSES))
        for metric in metrics
        if tables
    }
    # Both kinds have seconds.
    board["seconds"] = {name: {t: _values(found, t, name, "seconds") for t in kinds} for name in names}
    figure = {
        "titles": {name: CONTENDERS[name].title for name in names},
        "tables": {name: (REGRESSION | CLASSES)[name] for name in kinds},
        "means": {m: {n: {t: mean_of(v) for t, v in of.items()} for n, of in by.items()} for m, by in board.items()},
    }
    return Outcome(_rows(board, s), _checks(board, s), figure, _notes(s))


def _is_left_to_a_gpu(run: Run, kind: str, table: str, contender: Contender) -> bool:
    """Whether a contender would take hours for a table here."""
    most = contender.most_rows_on_cpu
    if most is None or run.device != "cpu" or len(_split(run, kind, table, 0).x) <= most:
        return False
    run.note(f"{contender.title} is run on tables of up to {most:,} training rows on a CPU, on all of them on a GPU")
    return True


def _split(run: Run, kind: str, table: str, number: int) -> Split:
    if kind == "classes":
        return class_split(table, number)
    rows = _GENERATED_ROWS if run.generated else None
    return regression_split(lambda t, **options: run.load(t, rows=rows, **options), table, number)


def _by_name(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Table, contender and split say all; settings choose among them."""
    return {}


def _values(
    found: Mapping[tuple[str, str], list[dict[str, Any]]], table: str, name: str, metric: str
) -> list[float | None] | None:
    """One value for each split; None for a contender that was not run, or failed, on one of them."""
    splits = found.get((table, name), [])
    return [one[metric] for one in splits] if splits and all(metric in one for one in splits) else None


def _scores(run: Run, kind: str, table: str, name: str, number: int) -> dict[str, Any]:
    """Scores of one contender on one split of a table."""
    contender = CONTENDERS[name]
    split = _split(run, kind, table, number)
    if contender.most_rows is not None and len(split.x) > contender.most_rows:
        return {"too_many": len(split.x)}
    device = (run.device,) if contender.on_device else ()
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence, mostly: defaults are what they are
            if kind == "regression":
                assert contender.regress is not None
                forecast = contender.regress(split.x, split.y, number, *device).forecast(split.test_x, split.test_y)
                found: dict[str, Any] = regression_scores(forecast, split.test_y)
            else:
                assert contender.classify is not None
                found = class_scores(contender.classify(split.x, split.y, number, *device)(split.test_x), split.test_y)
    except NotInstalled as error:
        return {"missing": str(error)}
    except (ValueError, ArithmeticError, RuntimeError) as error:
        if contender.ours:
            raise
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    if device and run.device != "cpu":
        run.note(f"{contender.title} was trained on a GPU, which its seconds show; all others on the CPU")
    return found | {"seconds": time.monotonic() - began}


def _rows(board: Mapping[str, Any], s: Mapping[str, Any]) -> list[Row]:
    """Ranks over the tables of a kind, and the figures of the default table by table."""
    rows = []
    for tables, metrics in ((s["regression"], _REGRESSION), (s["classes"], _CLASSES)):
        for metric, higher in metrics.items():
            if not tables or higher is None or metric == "seconds":
                continue
            places = ranks(board[metric], tables, higher)
            for name, (rank, count, firsts) in sorted(places.items(), key=lambda item: item[1][0]):
                text = f"{_UNITS.get(metric, metric)}: mean rank (0 first, 1 last) on {count} tables, {firsts} won"
                rows.append(Row(CONTENDERS[name].title, text, None, [rank]))
    for tables, metrics in ((s["regression"], _REGRESSION), (s["classes"], _CLASSES)):
        for table in tables:
            for metric in metrics:
                values = board[metric]["default"].get(table)
                title = f"{(REGRESSION | CLASSES)[table]}: leanbayes, default"
                rows.append(Row(title, _UNITS.get(metric, metric), None, values or []))
    return rows


def _checks(board: Mapping[str, Any], s: Mapping[str, Any]) -> list[Check]:
    checks = []
    tables = s["regression"]
    if tables:
        for rival in ("ngboost", "catboost"):
            checks += _wins(board["log density"], tables, rival, _MOST, lambda d: d[0] > 0, "log density above")
        checks += _wins(board["rmse"], tables, "gradient-boosting", _MOST, lambda d: d[0] <= 0, "RMSE at most")
        near = f"log density within {_NEAR} of, or above,"
        checks += _wins(board["log density"], tables, "gaussian-process", _NEAR_SHARE, lambda d: d[0] >= -_NEAR, near)
        checks += _coverage([mean_of(board["coverage"]["default"].get(table)) for table in tables])
    for metric in ("nll", "ece") if s["classes"] else ():
        text = f"{_UNITS[metric]} no worse by a standard error than"
        checks += _wins(board[metric], s["classes"], "gradient-boosting", 1.0, lambda d: d[0] <= d[1], text)
    return checks


def _wins(board: Any, tables: Sequence[str], rival: str, share: float, good: Any, text: str) -> list[Check]:
    """On how many of the tables that both were run on the default is as it should be."""
    if rival not in board:
        return []
    pairs = [difference(board["default"].get(table), board[rival].get(table)) for table in tables]
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return []
    count, least = sum(bool(good(pair)) for pair in known), math.ceil(share * len(tables) - 1e-9)
    least = min(least, len(known))
    claim = f"leanbayes, default: {text} that of {CONTENDERS[rival].title} on {least} of {len(known)} tables"
    return [Check(claim, count >= least, f"{CONTENDERS[rival].title}: on {count} of {len(known)}, {least} are asked")]


def _coverage(shares: Sequence[float | None]) -> list[Check]:
    known = [share for share in shares if share is not None]
    if not known:
        return []
    mean = sum(known) / len(known)
    (low, high), (least, most) = _COVERAGE, _EACH_COVERAGE
    return [
        Check(
            f"leanbayes, default: 90 % intervals hold {low:.0%} to {high:.0%} of the targets on average",
            low <= mean <= high,
            f"they hold {mean:.1%}",
        ),
        Check(
            f"leanbayes, default: 90 % intervals hold {least:.0%} to {most:.0%} of the targets of each table",
            all(least <= share <= most for share in known),
            f"they hold {min(known):.1%} to {max(known):.1%}",
        ),
    ]


def _notes(s: Mapping[str, Any]) -> list[str]:
    return [
        "every contender has its library's defaults and sees the training rows alone; nothing is tuned for a table",
        "trees get normal noise of the size of their errors on rows left out; seconds are those of training and "
        "prediction together",
        f"splits of each table: {s['splits']}, the published ones of the UCI tables (Protein has five)",
        "a Gaussian process is run on tables of up to 2,000 rows",
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Mean ranks of all contenders by log density or NLL, over all tables."""
    tables = [t for t in figure["tables"] if t in REGRESSION], [t for t in figure["tables"] if t in CLASSES]
    places: dict[str, list[float]] = {}
    for metric, of, higher in (("log density", tables[0], True), ("nll", tables[1], False)):
        if of:
            means = figure["means"][metric]
            board = {name: {t: None if v is None else [v] for t, v in by.items()} for name, by in means.items()}
            for name, (rank, count, _) in ranks(board, of, higher).items():
                places.setdefault(name, []).extend([rank] * count)
    order = sorted(places, key=lambda name: -sum(places[name]) / len(places[name]))
    axes = canvas.subplots()
    for number, name in enumerate(order):
        values = places[name]
        colour = "#3b5bdb" if CONTENDERS[name].ours else "#868e96"
        axes.scatter(values, [number] * len(values), s=10, color=colour, alpha=0.4)
        axes.scatter([sum(values) / len(values)], [number], s=50, color=colour)
    axes.set_yticks(range(len(order)), [figure["titles"][name] for name in order], fontsize=8)
    axes.set_xlabel("rank by log density or NLL, from first to last; large points: means over the tables")
    axes.set_xlim(-0.05, 1.05)
    axes.set_title("who predicts tables best")


_SMALL = ("random-forest", "gradient-boosting", "default")
_ALL = {"regression": tuple(REGRESSION), "classes": tuple(CLASSES), "contenders": tuple(CONTENDERS)}
register(
    Recipe(
        id="board-tables",
        title="The default estimators against what else a user would pick, on tables",
        presets={
            "smoke": {"regression": ("yacht",), "classes": ("wine",), "contenders": _SMALL, "splits": 1},
            "short": _ALL | {"splits": 5},
            "paper": _ALL | {"splits": 20},
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0,)},
        measure=measure,
        draw=draw,
    )
)
