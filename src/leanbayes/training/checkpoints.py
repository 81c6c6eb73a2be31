"""What a checkpoint must have in common with the run that goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanbayes.training.config import TrainConfig
from leanbayes.training.errors import OutputError

FORMAT = 1
# The name of a fingerprint among the values that tell data apart.
ROWS = "rows"


def difference(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """What tells the data of an earlier run from those of this one, in words; None where they are the same.

    Args:
        before: Plain values by name, such as the data's name, the split and a fingerprint; None where the run did not
            note them.
        now: The same of this run, the fingerprint ("rows") last.

    Example:
        >>> difference({"split": 0, "rows": "a7"}, {"split": 2, "rows": "1c"})
        'it had split=0 instead of 2'
    """
    if before is None:
        return "it did not record its own"
    for name, value in now.items():
        if before.get(name) == value:
            continue
        if name == ROWS:
            return f"{now.get('data', 'the content of the data')} has changed since"
        if before.get(name) is None:
            return f"it had no {name} instead of {name}={value!r}"
        return f"it had {name}={before[name]!r} instead of {'none' if value is None else repr(value)}"
    return None


def check_same_rows(what: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Raises where an earlier run had other data.

    Args:
        what: That run, as a message calls it.
        before: See `difference`.
        now: See `difference`.

    Raises:
        OutputError: It says what differs.
    """
    other = difference(before, now)
    if other is not None:
        raise OutputError(f"{what} cannot continue with these rows: {other}; choose another folder")


def check_fits(
    state: dict[str, Any],
    path: Path,
    config: TrainConfig,
    *,
    examples: int | None,
    world: int,
    identity: Mapping[str, Any] | None = None,
) -> None:
    """Raises unless a run can go on from a checkpoint.

    Args:
        state: The checkpoint.
        path: Its file.
        config: The configuration of the run.
        examples: Number of its training examples, None where the data does not say.
        world: Number of its processes.
        identity: What tells its data from others, None where that is not known.

    Raises:
        OutputError: Otherwise; it says what differs.
    """
    if state.get("format") != FORMAT:
        raise OutputError(f"{path} is not a checkpoint that this version can read; delete it to start again")
    if identity is not None:
        check_same_rows(f"the run in {path.parent}", state.get("identity"), identity)
    # Earlier versions held no rows out.
    before = TrainConfig.from_dict({"hold_out": 0} | state["config"])
    changed = config.differences(before)
    if changed:
        name = changed[0]
        raise OutputError(
            f"the run in {path.parent} was started with {name}={getattr(before, name)!r}, not "
            f"{getattr(config, name)!r}; resume with the same configuration or choose another folder"
        )
    if state["examples"] != examples:
        raise OutputError(
            f"the run in {path.parent} was started on {state['examples']} training examples, and the data has "
            f"{examples}; choose another folder"
        )
    if len(state["random"]) != world:
        raise OutputError(
            f"the run in {path.parent} has {len(state['random'])} processes; resume it with as many, not {world}"
        )
