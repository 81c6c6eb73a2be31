"""Settings from a YAML or JSON file: the names of the options, with the command line above them."""

from __future__ import annotations

import argparse
import difflib
import json
from pathlib import Path
from typing import Any

from leanbayes.cli._errors import UsageError

_SEVERAL = ("+", "*")


def apply_config(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Make the values of the file that ``--config`` names the parser's defaults."""
    path = _named(words)
    if path is None:
        return
    actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
    values = {str(name).replace("-", "_"): value for name, value in _read(Path(path)).items()}
    for name, value in values.items():
        if name not in actions:
            near = difflib.get_close_matches(name, actions, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(actions))}"
            raise UsageError(f"{path} has a setting {name!r} that this command does not have; {hint}")
        actions[name].default = _converted(actions[name], value, path)
        actions[name].required = False
        if not actions[name].option_strings:
            # A positional argument that the file gives may be left out.
            actions[name].nargs = "*" if actions[name].nargs in _SEVERAL else "?"


def _named(words: list[str]) -> str | None:
    for position, word in enumerate(words):
        if word == "--config" and position + 1 < len(words):
            return words[position + 1]
        if word.startswith("--config="):
            return word.split("=", 1)[1]
    return None


def _read(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror or error}") from None
    try:
        if path.suffix == ".json":
            values = json.loads(text)
        else:
            try:
                import yaml
            except ModuleNotFoundError:
                raise UsageError("a YAML configuration needs PyYAML; install it, or write the file as JSON") from None
            try:
                values = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(" ".join(str(error).split())) from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"the configuration {path} cannot be understood: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"the configuration {path} must hold names and values, such as 'samples: 20'")
    return values


def _converted(action: argparse.Action, value: Any, path: str) -> Any:
    """A value as the option would have read it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{action.dest} in {path} is true or false, not {value!r}")
        return value
    # An option that may be given again has a list, too.
    several = action.nargs in _SEVERAL or isinstance(action, argparse._AppendAction)
    items = value if isinstance(value, list) else [value]
    if len(items) != 1 and not several:
        raise UsageError(f"{action.dest} in {path} takes one value, not {value!r}")
    kind = action.type if callable(action.type) else str
    try:
        read = [kind(str(item)) for item in items]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{action.dest} in {path} cannot be {value!r}: it {error}") from None
    except ValueError:
        raise UsageError(f"{action.dest} in {path} cannot be {value!r}") from None
    for item in read:
        if action.choices is not None and item not in action.choices:
            raise UsageError(f"{action.dest} in {path} is one of {', '.join(map(str, action.choices))}, not {item!r}")
    return read if several else read[0]
