"""Commands as tests give them, and what they write."""

import json

from leanbayes.cli import main


def answer(capsys, *words) -> dict:
    """What a command that succeeds prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *words) -> str:
    """The one line that a command that fails writes."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 1
    *others, last = capsys.readouterr().err.strip().splitlines()
    # With --json, what people read goes there too.
    assert last.startswith("leanbayes: error: ") and not [line for line in others if "Error" in line or "File" in line]
    return last
