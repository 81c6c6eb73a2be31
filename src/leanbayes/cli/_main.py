"""`leanbayes`: parse, run one sub-command, and turn errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from leanbayes._version import __version__
from leanbayes.cli import bench, compare, evaluate, fit, predict, report, reproduce, summary
from leanbayes.cli._config import apply_config
from leanbayes.cli._errors import sentence, spelled

# In the order of the help.
_COMMANDS = (compare, fit, evaluate, predict, summary, report, reproduce, bench)
_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Complains on one line, as all errors do; the sub-commands' parsers are of this kind, too."""

    def error(self, message: str) -> NoReturn:
        """Ends with the status of arguments that make no sense."""
        _complain(f"{' '.join(message.split())}; see {self.prog} --help")
        self.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, those of the process where None.

    Returns:
        0 when the job was done, 1 after an error, 2 for arguments that make no sense, 3 where a time limit came first,
        130 after Ctrl-C.
    """
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
        _complain(sentence(error))
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
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(run=module.run, parser=sub)
        if words and words[0] == name:
            apply_config(sub, words[1:])
    return parser.parse_args(words)


def _complain(text: str) -> None:
    print(f"leanbayes: error: {text}", file=sys.stderr)
