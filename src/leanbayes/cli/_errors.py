"""Errors in one sentence, in the words of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

_TEXT = r"""(?:'[^'\\]*'|"[^"\\]*")"""
# What the library calls an argument, and how it is written on the command line.
_SPELLINGS = (
    (
        re.compile(rf"\b(categories|numbers|drop|na)=(\[{_TEXT}(?:, {_TEXT})*\]),?"),
        lambda found: _flag(found[1], ast.literal_eval(found[2])),
    ),
    (re.compile(r"\b(categories|numbers)=\[\]"), r"no --\1"),
    (
        re.compile(r"\b(missing|task|target|normalise|class_weight|order_by|group_by|target_scale)='([^']*)',?"),
        lambda found: _flag(found[1], [found[2]]),
    ),
    (re.compile(r"\bheader=False"), "--no-header"),
    (re.compile(r"`root`"), "--root"),
    (re.compile(r"\b(resume|download|augment)=True"), r"--\1"),
    (re.compile(r"\binclude_seen=True"), "--include-seen"),
    (re.compile(r"\b(split|limit|size|classes)=(\d+)"), r"--\1 \2"),
    (re.compile(r"\b(test|valid)=(0?\.\d+)"), r"--\1 \2"),
)


def _flag(name: str, values: list[str]) -> str:
    """An option with its values, quoted where a shell needs it."""
    return shlex.join(_option(f"--{name.replace('_', '-')}", values))


def _option(flag: str, values: list[str]) -> list[str]:
    """The words of an option; of values that begin with a dash, each would be taken for a flag."""
    return [f"{flag}={text}" for text in values] if any(t.startswith("-") for t in values) else [flag, *values]


class UsageError(ValueError):
    """Something that the user can put right by another argument."""


class MethodsFailed(RuntimeError):
    """Some methods of a comparison have no figures; the table says why."""


_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError, MethodsFailed)


def spelled(text: str) -> str:
    """A message of the library with its arguments as the command line writes them.

    Example:
        >>> spelled("pass resume=True to go on")
        'pass --resume to go on'
        >>> spelled("leave them out with drop=['price [EUR]', '-b']")
        "leave them out with '--drop=price [EUR]' --drop=-b"
    """
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def command_with(words: list[str], fixes: dict[str, Any]) -> str:
    """A command with some options of a reader, which stand in the place of those that it had.

    Example:
        >>> command_with(["compare", "a.csv", "--drop", "b", "--json"], {"drop": ["b", "my id"], "missing": "impute"})
        "leanbayes compare a.csv --json --drop b 'my id' --missing impute"
        >>> command_with(["compare", "a.csv"], {"na": ["-inf", "inf"]})
        'leanbayes compare a.csv --na=-inf --na=inf'
    """
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.startswith("--"):
            skipping = word[2:].split("=")[0].replace("-", "_") in fixes
        if not skipping:
            kept.append(word)
    for name, value in fixes.items():
        if name == "header":
            kept.append("--no-header")
            continue
        flag, values = f"--{name.replace('_', '-')}", list(map(str, value if isinstance(value, list) else [value]))
        kept += _option(flag, values) if values else []
    return shlex.join(["leanbayes", *kept])


def sentence(error: Exception) -> str:
    """What went wrong and what to do, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "out of memory" in text:
        return f"the memory is full ({text or type(error).__name__}); use a smaller --batch-size or fewer --samples"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    text = spelled(text)
    if isinstance(error, _EXPECTED) and text:
        return text
    return f"{type(error).__name__}: {text}; run it again with --debug to see where this happened"
