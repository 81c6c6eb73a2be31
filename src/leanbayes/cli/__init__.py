"""The command line: one file per sub-command, errors on one line."""

from leanbayes.cli._main import main

__all__ = ["main"]
