"""`leanbayes`: parse, run one sub-command, and turn errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from leanbayes._version import __version__
from leanbayes.cli import bench, compare, evaluate, fit, predict, report, reproduce, summary
from leanbayes.cli._config import apply_config
from leanbayes.cli._errors import command_with, sentence, spelled
from leanbayes.cli._memory import keep_freed_memory

# In the order of the help.
_COMMANDS = (compare, fit, evaluate, predict, summary, report, reproduce, bench)
_INTERRUPTED = 130


# What people type who know other programs, where no flag of ours is spelled like it.
_MEANT = {
    "--epochs": "--budget",
    "--epoch": "--budget",
    "--steps": "--budget",
    "--learning-rate": "--lr",
    "--gpu": "--device",
    "--cuda": "--device",
    "--label": "--target",
    "--y": "--target",
    "--exclude": "--drop",
    "--ignore": "--drop",
    "--sep": "--separator",
    "--delimiter": "--separator",
    "--categorical": "--categories",
}


class _Parser(argparse.ArgumentParser):
    """Complains on one line, as all errors do; the sub-commands' parsers are of this kind, too."""

    # Of the sub-command that was named, where one was: what it does not know, the parser above it complains about.
    chosen: _Parser | None = None

    def error(self, message: str) -> NoReturn:
        """Ends with the status of arguments that make no sense."""
        parser = self.chosen or self
        hint = _nearest(message, [flag for action in parser._actions for flag in action.option_strings])
        _complain(f"{' '.join(message.split())}{hint}; see {parser.prog} --help")
        self.exit(2)


def _nearest(message: str, flags: Iterable[str]) -> str:
    """What was meant by the words that a message complains about, where something is near."""
    given = re.match(r"unrecognized arguments: (.*)", message)
    if given is not None:
        words, known = [word.split("=")[0] for word in given[1].split() if word.startswith("-")], list(flags)
    elif choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
        words, known = [choice[1]], [name.strip(" '") for name in choice[2].split(",")]
    else:
        return ""
    meant = [_MEANT.get(word, "") for word in words]
    near = [difflib.get_close_matches(word, known, n=1) for word in words]
    found = [flag if flag in known else close[0] for flag, close in zip(meant, near) if flag in known or close]
    return f" (did you mean {' and '.join(dict.fromkeys(found))}?)" if found else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, those of the process where None.

    Returns:
        0 when the job was done, 1 after an error, 2 for arguments that make no sense, 3 where a time limit came first,
        130 after Ctrl-C.
    """
    if argv is None:
        keep_freed_memory()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        options = _parse(words)
        options.words = words
        return options.run(options)
    except SystemExit as stop:
        # argparse ends the process after --help and after arguments that it does not know.
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt as error:
        if debug:
            raise
        _complain(spelled(str(error)) or "interrupted; --resume goes on where there is a checkpoint")
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        fixes = getattr(error, "fixes", None)
        run = f"; run: {command_with(words, fixes)}" if fixes else ""
        _complain(sentence(error) + run)
        return 1


def _parse(words: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="leanbayes",
        description="Bayesian neural networks that cost little more than plain ones: train, compare, predict.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"leanbayes {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        name = module.__name__.rsplit(".", 1)[1]
        text = (module.__doc__ or "").strip().splitlines()[0]
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        module.add_arguments(sub)
        sub.add_argument("--debug", action="store_true", help="show the full traceback of an error")
        sub.set_defaults(run=module.run, parser=sub)
        if words and words[0] == name:
            parser.chosen = sub
            apply_config(sub, words[1:])
    return parser.parse_args(words)


def _complain(text: str) -> None:
    print(f"leanbayes: error: {text}", file=sys.stderr)
