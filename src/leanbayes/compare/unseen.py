"""The rows of some data that a saved model may be measured on: those that its training has not seen."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from leanbayes.compare.checkpoint import Checkpoint
from leanbayes.compare.seen import Seen, fingerprint
from leanbayes.data import Dataset, Part, Schema, load, read_rows
from leanbayes.data._registry import named


@dataclass(frozen=True)
class Unseen:
    """What to measure.

    Attributes:
        part: Inputs and targets, as they were read.
        seen: How many of these rows equal one of training or validation; None where that is not known.
        left_out: How many rows of the data are not among them, because the training has seen them.
        notes: What a reader of the figures should know, one sentence each.
    """

    part: Part
    seen: int | None
    left_out: int
    notes: tuple[str, ...]


def unseen_rows(
    saved: Checkpoint,
    data: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    *,
    split: int | None = None,
    include_seen: bool = False,
) -> Unseen:
    """The rows of some data that a model has not seen in its training.

    Of the data that it was trained on, that is the test part of the training, with all its rows: the protocol of a
    published split counts, also where a test row equals a training row. Of another split or set it is the test part, of
    another file or folder everything, each without the rows that equal one of training or validation.

    Args:
        saved: The model.
        data: Name of a data set, or a file or folder with targets; what the model was trained on where None.
        root: Where named sets lie, see `load`.
        split: Which published split; that of the training where None.
        include_seen: Whether rows that the training has seen stay: the whole file, or the whole test part.

    Returns:
        The rows, and what was left out.

    Raises:
        ValueError: If no row is left, the data do not fit the model, or they have no targets.
    """
    data, root = _trained_on(saved, root) if data is None else (data, root)
    path = Path(data).expanduser()
    name = None if path.is_file() else named(data)
    if name is None and not path.exists():
        load(data, root)  # says which there are
    if name is None and split is not None:
        raise ValueError(f"split={split} chooses a published split of a UCI set, but {data} is not one; leave it out")
    others, notes = 0, ()
    if name is not None:
        dataset, own = _named(saved, name, data, root, split)
        part = dataset.test
    else:
        dataset = _read_again(saved, path)
        own = dataset is not None and not include_seen and _is_of(saved.seen, dataset)
        if dataset is not None and own:
            part, others = dataset.test, len(dataset.train) + len(dataset.valid)
        else:
            part, notes = _everything(saved, path, dataset)
    part = replace(part, x=part.tensor())
    found = _test_part(saved, data, part, others) if own else _without_seen(saved, data, part, include_seen)
    return replace(found, notes=(*notes, *found.notes, *_on_groups(saved, found.part)))


def _trained_on(saved: Checkpoint, root: Any) -> tuple[str, Any]:
    """Name or path of the data that a model was trained on, and where named sets lie."""
    origin = None if saved.seen is None else saved.seen.origin
    if origin is None or (origin.name is None and origin.path is None):
        raise ValueError("the model does not say what it was trained on; name data with targets to measure it on")
    if origin.name is not None:
        return origin.name, origin.path if root is None else root
    assert origin.path is not None
    if not Path(origin.path).exists():
        raise FileNotFoundError(
            f"the model was trained on {origin.path}, which is gone; name data with targets to measure it on"
        )
    return origin.path, root


def _options(saved: Checkpoint, name: str | None) -> dict[str, Any] | None:
    """How the training's data were read, where they had this name, or where both have none; else None."""
    origin = None if saved.seen is None else saved.seen.origin
    return origin.options if origin is not None and origin.name == name else None


def _named(saved: Checkpoint, name: str, data: Any, root: Any, split: int | None) -> tuple[Dataset, bool]:
    """A named set, read as for the training where it is the same, and whether its rows are those of the training."""
    options = _options(saved, name)
    chosen = {} if split is None else {"split": split}
    dataset = load(data, root, **(options or {}) | chosen)
    _check_fits(dataset, saved.schema, data)
    return dataset, options is not None and _is_of(saved.seen, dataset)


def _read_again(saved: Checkpoint, path: Path) -> Dataset | None:
    """A file or folder, read as the training's was; None where it cannot be."""
    options = _options(saved, None)
    try:
        return None if options is None else load(path, **options)
    except (ValueError, OSError):  # such as a file of another format, or of too few rows to hold some out
        return None


def _is_of(seen: Seen | None, dataset: Dataset) -> bool:
    """Whether all parts are those of a training."""
    if seen is None or seen.origin is None:
        return False
    limit = seen.origin.limit
    return fingerprint(dataset if limit is None else dataset.limited(limit)) == seen.rows


def _everything(saved: Checkpoint, path: Path, again: Dataset | None) -> tuple[Part, tuple[str, ...]]:
    """All rows of a file with targets, and of a folder those of its test part or, where it has none, all; and notes.

    Args:
        saved: The model.
        path: The file or folder.
        again: The same, read as the training's was, where it can be.
    """
    schema = saved.schema
    if not path.is_dir():
        rows = read_rows(path, schema, targets="needed")
        if rows.y is None:
            raise ValueError(f"{path} has no targets to measure against; use `leanbayes predict` without them")
        return Part(rows.x, rows.y, rows.groups), rows.notes
    if again is not None and again.origin is not None:
        options = again.origin.options
    else:  # images get the size that the network takes
        options = {"size": schema.shape[-1]} if schema.inputs == "image" else {}
    whole: dict[str, Any] = {**options, "valid": 0, "test": 0}
    dataset = load(path, **whole)
    _check_fits(dataset, schema, path)
    return (dataset.test if len(dataset.test) else dataset.train), ()


def _check_fits(dataset: Dataset, schema: Schema, data: Any) -> None:
    if dataset.shape != schema.shape or dataset.class_names != schema.class_names:
        raise ValueError(
            f"{data} has inputs of shape {dataset.shape} and {dataset.classes or 'no'} classes, but the model "
            f"was trained on {schema.shape} and {schema.classes or 'no'} classes"
        )


def _test_part(saved: Checkpoint, data: Any, part: Part, others: int) -> Unseen:
    """The test part of the training itself, and how many rows of the file are not in it."""
    assert saved.seen is not None and saved.seen.origin is not None
    if not len(part):
        raise ValueError(
            f"the training held out no test rows of {data}; pass data that the model has not seen, or pass "
            "include_seen=True to measure all rows"
        )
    split, known = saved.seen.origin.options.get("split"), saved.seen.knows(part)
    notes = [] if split is None else [f"measured on the test part of split {split}, that of the training"]
    if others:
        notes.append(
            f"measured on the rows that the training held out; the other {others} rows of {data} were left out"
        )
    repeated = None if known is None else int(known.sum())
    if repeated:
        notes.append(f"{repeated} of these rows also occur among those that the model was trained or validated on")
    return Unseen(part, repeated, others, tuple(notes))


def _without_seen(saved: Checkpoint, data: Any, part: Part, include_seen: bool) -> Unseen:
    """Rows of other data than those of the training, less those that it has seen."""
    known = None if saved.seen is None else saved.seen.knows(part)
    if known is None:
        why = "an earlier version saved it" if saved.seen is None else "its list of them is missing"
        note = f"it cannot be known which of these rows the model was trained on, as {why}"
        return Unseen(part, None, 0, (note,))
    count, rows = int(known.sum()), len(part)
    if include_seen:
        note = f"{count} of the {rows} rows were seen in training: these are not figures on new data"
        return Unseen(part, count, 0, (note,) if count else ())
    if count == rows:
        raise ValueError(
            f"all {rows} rows of {data} equal rows that the model was trained or validated on; pass data that it has "
            "not seen, or pass include_seen=True to measure them anyway"
        )
    note = (
        f"{count} of {rows} rows were left out, as the model was trained or validated on rows equal to them; "
        "include_seen=True measures them, too"
    )
    kept = part.take(np.flatnonzero(~known))
    return Unseen(kept, 0, count, (note,) if count else ())


def _on_groups(saved: Checkpoint, part: Part) -> tuple[str, ...]:
    """A note on how many rows are of groups that training has seen, where its parts were made of groups."""
    name = saved.schema.group
    if name is None or saved.seen is None or saved.seen.groups is None:
        return ()
    known = saved.seen.knows_group(part)
    if known is None or part.groups is None:
        return (f"without a column {name!r}, it cannot be known which of these rows are of one seen in training",)
    if not known.any():
        return (f"the figures are for values of {name!r} that training has not seen",)
    groups = part.groups.numpy()
    old, all_groups = len(np.unique(groups[known])), len(np.unique(groups))
    return (
        f"{int(known.sum())} of the {len(known)} rows are of a {name!r} that training has seen ({old} of {all_groups} "
        "values); figures on them say nothing about new ones",
    )
