"""The file of a benchmark: what was run on what, and one row for each figure, written as soon as there is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.training.files import prepare_folder, write_bytes

# What contenders are set against, and its name among theirs.
PLAIN = "plain"
DONE, SKIPPED, FAILED = "done", "skipped", "failed"
_KEY = ("contender", "mode", "part", "samples", "axis", "value")
# What has to be the same for rows to stand in one file; the day may be another.
_SAME = ("id", "device", "settings")
# What rows of an earlier run keep of its header, where that of the later one says something else.
MADE = ("command", "date", "versions")


class OtherRun(ValueError):
    """A file holds the rows of a run that cannot be continued."""


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row measures, whatever it found."""
    return tuple(row.get(name) for name in _KEY)


class ResultFile:
    """Rows of one network on one device.

    Args:
        path: Of the file; nothing is written where None.
        header: What was run on what.
        resume: Keep the rows that are there already.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any], resume: bool = False) -> None:
        self.path = path
        self.header = dict(header)
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        if path is not None:
            prepare_folder(path.parent)
            if resume and path.exists():
                self._continue(read(path), path)

    def has(self, **measured: Any) -> bool:
        """Whether that is measured already; what was skipped or failed is tried again."""
        row = self._rows.get(key(measured))
        return row is not None and row["status"] == DONE

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row in place of an earlier one of the same figure, and write the file."""
        self._rows[key(row)] = dict(row)
        if self.path is not None:
            write_bytes(self.path, (json.dumps(self.to_json(), indent=1) + "\n").encode())

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return self.header | {"rows": list(self._rows.values())}

    def _continue(self, before: dict[str, Any], path: Path) -> None:
        for name in _SAME:
            if before.get(name) != self.header[name]:
                raise OtherRun(
                    f"{path} holds rows of another {name} ({before.get(name)} and not {self.header[name]}); "
                    "measure into another folder"
                )
        earlier, now = ({name: header.get(name) for name in MADE} for header in (before, self.header))
        made = {} if earlier == now else {"made": earlier}
        self._rows = {key(row): made | row for row in before["rows"]}


def read(path: Path) -> dict[str, Any]:
    """The content of a file; an error where it is none of a benchmark."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OtherRun(f"{path} cannot be read as the result of a benchmark: {error}") from None
    if not isinstance(content, dict) or not {"id", "device", "settings", "rows"} <= content.keys():
        raise OtherRun(f"{path} is not a result of `leanbayes bench`")
    return content
