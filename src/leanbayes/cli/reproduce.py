"""Run a published result and show it beside the published figures; without an id, list them all.

For example ``leanbayes reproduce vn-toy --preset smoke``, or ``leanbayes reproduce 'vn-*' --data DATA --device cuda``.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import shlex
from pathlib import Path
from typing import Any

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._tables import console, print_json

# Not done, no error either: the same command goes on.
_LEG_OVER = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="a published result, or a pattern such as 'vn-*'")
    parser.add_argument(
        "--preset",
        choices=("smoke", "short", "paper"),
        default="short",
        help="smoke: seconds; short: about ten minutes on a GPU; paper: the published schedule (default: short)",
    )
    parser.add_argument(
        "--seeds", type=shared.seed, nargs="+", action=shared.Several, help="seeds to use instead of the preset's"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--data", metavar="FOLDER", help="folder of data sets (default: LEANBAYES_DATA or the cache)")
    parser.add_argument("--download", action="store_true", help="download missing public data sets")
    parser.add_argument(
        "--work",
        metavar="FOLDER",
        default="runs/reproduce",
        help="folder for work in progress (default: runs/reproduce)",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="folder for results (default: results; for smoke runs, smoke in --work)"
    )
    parser.add_argument(
        "--time-limit",
        type=shared.positive,
        metavar="SECONDS",
        help="stop after this time, between two epochs or pieces of work; the same command continues",
    )
    parser.add_argument(
        "--workers",
        type=shared.count,
        default=1,
        metavar="N",
        help="pieces of work, such as networks, to do at a time, each in its own process (default: 1)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a setting of the preset"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        action=shared.Several,
        default=[],
        metavar="PIECE",
        help="do only these pieces of work, such as '*normal-seed0'; the result appears once all are done",
    )
    parser.add_argument("--replace", action="store_true", help="replace a result even if it shows more")
    shared.add_common(parser, samples=None)


def run(options: argparse.Namespace) -> int:
    """Do it; 3 where the time was over first."""
    if not options.ids:
        return _list(options)
    from leanbayes.reproduce import Leg, LegOver, PartDone, execute
    from leanbayes.reproduce.plan import plan

    chosen = _chosen(options.ids)
    screen = console(options.json)
    device = shared.device_of(options)
    asked: dict[str, Any] = {name: getattr(options, name) for name in ("preset", "seeds", "work", "out", "replace")}
    asked["settings"] = dict(_setting(text) for text in options.set)
    # What any of them would refuse is said before hours go into the first.
    for recipe in chosen:
        plan(recipe, **asked)
    leg = Leg(options.time_limit)
    results: list[dict[str, Any]] = []
    for recipe in chosen:
        screen.print(f"{recipe.id}: {recipe.title}", markup=False, highlight=False)
        try:
            result = execute(
                recipe,
                **asked,
                device=device,
                data=options.data,
                download=options.download,
                limit_s=leg,
                workers=options.workers,
                command=_command(recipe.id, options),
                only=options.only,
            )
        except PartDone as part:
            open_ones = ", ".join(part.open)
            screen.print(f"done what --only asks for; open: {open_ones}", markup=False, highlight=False, soft_wrap=True)
            continue
        except LegOver:
            return _stopped(screen, recipe.id, results, options)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted in {recipe.id}; {_goes_on(options)}") from None
        results.append(result)
        _show(screen, result, options)
    if options.json:
        print_json(results)
    return 0


def _list(options: argparse.Namespace) -> int:
    """Every entry of the ledger with how far it is."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from leanbayes.reproduce import SYSTEMS, status
    from leanbayes.reproduce.ledger import BEYOND_TITLE

    entries = status(Path(options.out or "results"))
    if options.json:
        print_json(entries)
        return 0
    screen = console()
    table = Table("id", "what", "status", box=SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    section = None
    for entry in entries:
        title = BEYOND_TITLE if "beyond" in entry else SYSTEMS[entry["id"].split("-")[0]]
        if title != section:
            section = title
            table.add_section()
            table.add_row("", f"[bold]{section}[/bold]", "")
        table.add_row(entry["id"], entry["title"], _status_text(entry))
    screen.print(table)
    for entry in entries:
        if entry["status"] == "unusable":
            screen.print(entry["gap"], markup=False, highlight=False, soft_wrap=True)
    return 0


def _status_text(entry: dict[str, Any]) -> str:
    text = entry["status"]
    if "preset" in entry:
        data = ", generated data" if entry.get("generated") else ""
        text += f" ({entry['preset']}, {entry['date']}{data})"
    for preset, count in entry.get("pieces", {}).items():
        text += f", {count} piece{'' if count == 1 else 's'} done ({preset})"
    return text


def _chosen(words: list[str]) -> list[Any]:
    """The recipes that ids and patterns name, each once."""
    from leanbayes.reproduce import BEYOND, LEDGER
    from leanbayes.reproduce.recipe import broken, recipes

    ready = recipes()
    chosen = {}
    for word in words:
        names = fnmatch.filter(ready, word)
        if not names:
            raise UsageError(_unknown(word, list(ready), [*LEDGER, *BEYOND], broken()))
        chosen |= {name: ready[name] for name in names}
    return list(chosen.values())


def _unknown(word: str, ready: list[str], ledger: list[str], broken: dict[str, Exception]) -> str:
    if word in broken:
        return f"the recipe {word} cannot be imported ({type(broken[word]).__name__}: {broken[word]})"
    if word in ledger:
        return f"{word} is planned and has no recipe yet; there are {', '.join(ready)}"
    near = difflib.get_close_matches(word, [*ready, *ledger], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`leanbayes reproduce` lists them"
    return f"there is no published result {word!r}; {hint}"


def _setting(text: str) -> tuple[str, Any]:
    """Name and value of ``--set``; what is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set takes NAME=VALUE, such as --set epochs=3, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _command(id: str, options: argparse.Namespace) -> str:
    """The command of one result: what decides its figures, and not where its files lay."""
    words = ["leanbayes", "reproduce", id, "--preset", options.preset, "--device", shared.device_of(options)]
    if options.seeds is not None:
        words += ["--seeds", *map(str, options.seeds)]
    for text in options.set:
        words += ["--set", text]
    if options.download:
        words.append("--download")
    return shlex.join(words) + (" --data FOLDER" if options.data is not None else "")


def _show(screen: Any, result: dict[str, Any], options: argparse.Namespace) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from leanbayes.reproduce.execute import can_draw
    from leanbayes.reproduce.plan import result_folder
    from leanbayes.reproduce.result import NOT_JUDGED, published, spread

    table = Table("what", "metric", box=SIMPLE_HEAD)
    for title in ("published", "measured", "seeds"):
        table.add_column(title, justify="right")
    for row in result["rows"]:
        cells = (row["name"], row["metric"], published(row["published"]), spread(row["measured"]))
        table.add_row(*map(escape, cells), str(len(row["measured"])))
    screen.print(table)
    judged = result["verdict"] != NOT_JUDGED
    for check in result["checks"] if judged else ():
        screen.print(f"{'yes' if check['holds'] else 'no ':3}  {check['text']}", markup=False, highlight=False)
    for note in result["notes"]:
        screen.print(f"note: {note}", markup=False, highlight=False)
    gap = f": {result['gap']}" if result["gap"] else ""
    if not judged:
        gap = ": a smoke run shows that everything runs; --preset short or paper judges the result"
    screen.print(f"verdict: {result['verdict']}{gap}", markup=False, highlight=False)
    path = result_folder(options.preset, options.work, options.out) / f"{result['id']}.json"
    drawn = "" if can_draw() else "; install matplotlib for the picture"
    screen.print(f"result:  {path}{drawn}", markup=False, highlight=False, soft_wrap=True)


def _stopped(screen: Any, id: str, results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    done = ", ".join(result["id"] for result in results) or "none"
    text = f"time limit: stopped in {id}, finished: {done}; {_goes_on(options)}"
    screen.print(text, markup=False, highlight=False, soft_wrap=True)
    if options.json:
        print_json(results)
    return _LEG_OVER


def _goes_on(options: argparse.Namespace) -> str:
    return f"what is done is kept in {options.work}, and the same command goes on"
