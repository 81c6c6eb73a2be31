"""What a checkpoint must have in common with the run that goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanbayes.training.config import TrainConfig
from leanbayes.training.errors import OutputError

FORMAT = 1


def check_fits(state: dict[str, Any], path: Path, config: TrainConfig, *, examples: int | None, world: int) -> None:
    """Raises unless a run can go on from a checkpoint.

    Args:
        state: The checkpoint.
        path: Its file.
        config: The configuration of the run.
        examples: Number of its training examples, None where the data does not say.
        world: Number of its processes.

    Raises:
        OutputError: Otherwise; it says what differs.
    """
    if state.get("format") != FORMAT:
        raise OutputError(f"{path} is no checkpoint that this version can read; delete it to start again")
    before = TrainConfig.from_dict(state["config"])
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
