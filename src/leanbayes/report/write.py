"""`write_report`: from compare.json to one HTML file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.report.content import parse
from leanbayes.report.page import render
from leanbayes.training.files import write_bytes

SOURCE, TARGET = "compare.json", "report.html"


def write_report(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of a comparison: a single self-contained HTML file.

    The report leaves out whatever the comparison does not contain.

    Args:
        folder: Where `compare` wrote compare.json.
        out: The file to write, or a folder for report.html; None means report.html in `folder`.

    Returns:
        The file that was written.

    Raises:
        FileNotFoundError: If there is no compare.json.
        ValueError: If it is damaged or contains no methods.
        OutputError: If the report cannot be written; an earlier report stays intact.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "compare.json").write_text('{"data": "digits", "methods": [{"name": "plain"}]}')
        >>> write_report(folder).name
        'report.html'
    """
    content = render(parse(_read(Path(folder) / SOURCE)))
    target = Path(folder) / TARGET if out is None else Path(out)
    if target.is_dir():
        target = target / TARGET
    # A lone surrogate can come from JSON, and no file can hold it.
    write_bytes(target, content.encode("utf-8", errors="replace"))
    return target


def _read(path: Path) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; pass the folder that `leanbayes compare` wrote") from None
    except OSError as error:
        raise type(error)(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); run `leanbayes compare` again") from None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("methods"), list) or not raw["methods"]:
        raise ValueError(f"{path} holds no methods; run `leanbayes compare` again")
    return raw
