"""Run the benchmarks of a clone of the repository; all further arguments go to them.

For example ``leanbayes bench -- --help``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from leanbayes.cli._errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument("--clone", default=".", metavar="DIR", help="the clone (default: the current folder)")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for the benchmarks, after --")


def run(options: argparse.Namespace) -> int:
    """Do it; the exit code is the benchmarks'."""
    clone = Path(options.clone).expanduser()
    if not (clone / "benchmarks" / "run.py").is_file():
        raise UsageError(
            f"{clone.resolve()} is no clone of the repository (it has no benchmarks/run.py); clone it and pass --clone"
        )
    words = [sys.executable, "-m", "benchmarks.run", *options.arguments]
    code = subprocess.run(words, cwd=clone, check=False).returncode
    # A process that a signal ended has a negative code.
    return code if code >= 0 else 128 - code
