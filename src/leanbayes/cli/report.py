"""Rewrite the HTML report of a comparison.

For example ``leanbayes report runs/compare-digits``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._tables import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument("folder", metavar="DIR", help="folder that `compare` wrote")
    shared.add_common(parser, samples=None)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    folder = Path(options.folder).expanduser()
    if not (folder / "compare.json").is_file():
        raise UsageError(f"{folder} holds no compare.json; run `leanbayes compare DATA --out {folder}` first")
    from leanbayes.report import write_report

    page = write_report(folder)
    if options.json:
        print_json({"report": str(page)})
    else:
        print(page)
    return 0
