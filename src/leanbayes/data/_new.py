"""New examples for a network that was trained on data of a known schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._arrow import CSV_ENDINGS, Cells, in_utf8, read_cells
from leanbayes.data._checks import check_targets
from leanbayes.data._columns import RawColumn, infer_columns, read_stored
from leanbayes.data._dataset import Column, Schema
from leanbayes.data._encode import encode_columns, infinite_row, listed, short, unseen, wrong_values
from leanbayes.data._files import PathLike
from leanbayes.data._groups import group_numbers
from leanbayes.data._npz import read_npz
from leanbayes.data._table_errors import Problem, TableError, raise_all
from leanbayes.data._text import FIRST_WORD, encode
from leanbayes.data.folder import ImageFiles, image_paths
from leanbayes.data.npz import inputs_of

# What the target of new rows is read for: nothing, where it can be, or as the only rows that count.
IGNORED, OPTIONAL, NEEDED = "ignored", "optional", "needed"
# Ranges of the numbers of training by which others are far beyond them.
_FAR = 2.0


@dataclass(frozen=True)
class NewRows:
    """New examples as the network takes them, before normalisation.

    Attributes:
        x: Inputs ``[N, ...]``.
        y: Targets ``[N]``; None if there are none or they were not asked for.
        kept: Columns of a table that identify its rows, or that were asked for, by name.
        notes: What readers of the predictions should know, one sentence each.
        unseen: How many values of each column belong to none of its categories.
        groups: A number for the group of each row ``[N]``; None where the file does not say.
    """

    x: Tensor
    y: Tensor | None = None
    kept: dict[str, list[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unseen: dict[str, int] = field(default_factory=dict)
    groups: Tensor | None = None


def read_new(path: PathLike, schema: Schema) -> tuple[Tensor, Tensor | None]:
    """Reads inputs, and targets if the file has them, the way the training data were read.

    Tables come from CSV, TSV or Parquet files with the columns of training (others are ignored, in any order), anything
    from NPZ files with an array ``x`` and optionally ``y``, texts also from a file with one text per line, and images
    also from an image file or from all images below a folder.

    Args:
        path: The file or folder.
        schema: That of the training data.

    Returns:
        Inputs ``[N, ...]`` before normalisation, and targets ``[N]`` or None.

    Raises:
        ValueError: If the file does not fit the schema, in one sentence.
    """
    rows = read_rows(path, schema)
    return rows.x, rows.y


def read_rows(path: PathLike, schema: Schema, *, targets: str = OPTIONAL, keep: Sequence[str] = ()) -> NewRows:
    """As `read_new`, with everything else known about the rows.

    Args:
        path: The file or folder.
        schema: That of the training data.
        targets: "ignored", "optional", or "needed", which leaves out rows of a table without a target.
        keep: Columns of a table to keep besides those that identify the rows.

    Returns:
        The rows.
    """
    path = Path(path).expanduser()
    images = image_paths(path) if schema.inputs == "image" else []
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if path.is_dir() and not images:
        raise ValueError(f"{path} is a folder without images for this network; pass a file")
    if images:
        found = NewRows(ImageFiles(images, schema.shape[-1])[:])
    elif path.suffix == ".npz":
        found = _from_arrays(path, schema)
    elif schema.inputs == "text" and path.suffix == ".txt":
        found = _from_lines(path, schema)
    elif schema.inputs == "table" and path.name.lower().endswith((*CSV_ENDINGS, ".parquet")):
        found = _from_table(path, schema, targets, keep)
    else:
        others = {
            "image": "an image, a folder of images or ",
            "text": "a TXT file or ",
            "table": "a CSV, TSV or Parquet file or ",
        }
        raise ValueError(f"the network cannot read {path.name}; pass {others.get(schema.inputs, '')}an NPZ file with x")
    shape = tuple(found.x.shape[1:])
    if shape != schema.shape:
        raise ValueError(f"{path.name} has inputs of shape {shape}, but the network takes {schema.shape}")
    if found.y is not None:
        check_targets(found.y, schema.task, len(schema.class_names), path.name)
    return found


def _from_lines(path: Path, schema: Schema) -> NewRows:
    """A text on each line."""
    if not schema.vocabulary:
        raise ValueError("the network was trained on ids without their words; pass ids in an NPZ file")
    notes: list[str] = []
    try:
        text = in_utf8(path, notes).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as text ({error}); save it as UTF-8") from None
    lines = text.removesuffix("\n").split("\n")  # other marks, such as those of a new page, are part of a text
    x = encode([] if lines == [""] else lines, schema.vocabulary, schema.shape[0])
    if strange := int((x < FIRST_WORD).all(1).sum()):
        notes.append(
            f"{strange} of {len(x)} texts of {path.name} hold no word that training knew; predictions for them mean "
            "nothing"
        )
    return NewRows(x, notes=tuple(notes))


def _from_arrays(path: Path, schema: Schema) -> NewRows:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise ValueError(f"{path.name} lacks the array 'x'; it holds {', '.join(arrays) or 'nothing'}")
    y = arrays.get("y")
    if y is not None and y.dtype.kind == "U":
        y = np.array([_number_of(text, schema, path) for text in y.ravel().tolist()])
    elif y is not None:
        y = y.astype(np.float64 if schema.task == "regression" else np.int64)
    return NewRows(inputs_of(arrays["x"], schema.inputs, path.name), None if y is None else torch.from_numpy(y))


def _number_of(text: str, schema: Schema, path: Path) -> int:
    if text not in schema.class_names:
        raise ValueError(f"y of {path.name} holds {text!r}, which training did not have")
    return schema.class_names.index(text)


def _from_table(path: Path, schema: Schema, targets: str, keep: Sequence[str]) -> NewRows:
    if not schema.columns:
        raise ValueError(
            f"the network was trained on arrays without column names, so the columns of {path.name} cannot be matched; "
            "use an NPZ file with x"
        )
    try:
        cells = read_cells(path, **schema.file_options)
    except TableError:  # its options are those of a training
        raise ValueError(
            f"the first line of {path.name} holds numbers instead of column names; add a line of names"
        ) from None
    if missing := [code.name for code in schema.columns if code.name not in cells.columns]:
        there = [name for name in cells.columns if name not in {code.name for code in schema.columns}]
        hint = f"; its others are {listed(list(map(repr, there)))}" if there else ""
        lacks = f"{path.name} lacks the column{'s' * (len(missing) > 1)} {listed(list(map(repr, missing)))}"
        raise ValueError(f"{lacks}, which the network was trained on{hint}")
    if absent := [name for name in keep if name not in cells.columns]:
        raise ValueError(f"{path.name} has no column {absent[0]!r} to keep; it has {listed(list(cells.columns))}")
    columns = [read_stored(cells, code) for code in schema.columns]
    raise_all(_problems(columns, schema, path), path.name)
    notes, counts = _notes(columns, schema, path)
    x = torch.from_numpy(encode_columns(columns, schema.columns, len(columns[0].values)))
    names = dict.fromkeys([*(name for name in schema.ids if name in cells.columns), *keep])
    kept = {name: cells.columns[name].to_pylist() for name in names}
    found = NewRows(x, None, kept, (*cells.notes, *notes), counts, _groups(cells, schema))
    return found if targets == IGNORED else _with_targets(found, cells, schema, path, targets)


def _groups(cells: Cells, schema: Schema) -> Tensor | None:
    """The groups of the rows, as those of training were read; None where there are none."""
    if schema.group not in cells.columns:
        return None
    (column,) = infer_columns(replace(cells, columns={schema.group: cells.columns[schema.group]}))
    return group_numbers(column.as_text().values.tolist())


def _problems(columns: Sequence[RawColumn], schema: Schema, path: Path) -> list[Problem]:
    """Columns that do not hold what the training's did."""
    found = []
    for column, code in zip(columns, schema.columns):
        name, wrong = code.name, wrong_values(column)
        kind = column.format.kind
        if code.kind != "category" and (kind == "text" or (kind == "date") != (code.kind == "date")):
            what = {"text": "text", "date": "dates"}.get(kind, "numbers")
            wanted = {"date": "dates", "boolean": "yes or no"}.get(code.source, "numbers")
            found.append(Problem(f"column {name!r} of {path.name} holds {what} where training had {wanted}"))
        elif code.kind in ("number", "date") and wrong:
            assert column.wrong is not None
            row = int(column.wrong.argmax()) + 1
            text = "text" if code.kind == "number" else "no date"
            wanted = f" where training had numbers in {code.unit}" if code.unit else ""
            found.append(
                Problem(f"column {name!r} of {path.name} holds {text} ({short(wrong[0])} in row {row}){wanted}")
            )
        elif schema.missing not in ("mean", "impute") and column.missing.any():
            count = int(column.missing.sum())
            text = f"column {name!r} of {path.name} misses {count} values, and the network was trained without any"
            found.append(Problem(text))
        elif (row := infinite_row(column)) is not None:
            found.append(Problem(f"column {name!r} of {path.name} holds an infinite number in row {row + 1}"))
    return found


def _notes(columns: Sequence[RawColumn], schema: Schema, path: Path) -> tuple[list[str], dict[str, int]]:
    """Sentences about what training did not have, and how many values of each column are in no category."""
    counts: dict[str, int] = {}
    strange, filled, bare, odd = [], [], [], []
    for column, code in zip(columns, schema.columns):
        others = unseen(column, code) + (wrong_values(column) if code.kind == "boolean" else [])
        if others:
            counts[code.name] = len(others)
            examples = [short(value) for value, _ in Counter(others).most_common(3)]
            strange.append(f"{len(others)} in {code.name!r} ({listed(examples)})")
        gaps = int(column.missing.sum()) - (0 if column.wrong is None else int(column.wrong.sum()))
        if code.unit and not column.format.unit and column.format.kind == "number":
            bare.append(f"{code.name!r} ({code.unit})")
        elif column.format.unit and not code.unit and code.kind == "number":
            odd.append(f"{code.name!r} ({column.format.unit})")
        if gaps:
            unknown = "" if code.indicator or schema.missing == "mean" else ", of which training had none"
            filled.append(f"{gaps} in {code.name!r}{unknown}")
    notes = []
    if strange:
        notes.append(f"values of {path.name} that belong to no category of the training data: {listed(strange)}")
    if filled:
        notes.append(f"missing values of {path.name} were filled as in training: {listed(filled)}")
    if bare:
        notes.append(f"numbers of {path.name} without a unit were taken to be in that of training: {listed(bare)}")
    if odd:
        notes.append(f"numbers of {path.name} have a unit where those of training had none: {listed(odd)}")
    if far := _far_values(columns, schema):
        notes.append(
            f"numbers of {path.name} are far beyond those of training, where predictions mean little: {listed(far)}"
        )
    return notes, counts


def _far_values(columns: Sequence[RawColumn], schema: Schema) -> list[str]:
    """The number of each column that is farthest beyond those of training, where that is far."""
    found = []
    for column, code in zip(columns, schema.columns):
        if code.limits is None or column.is_text or column.missing.all():
            continue
        low, high = code.limits
        beyond = np.nan_to_num(np.maximum(low - column.values, column.values - high), nan=0.0)
        row = int(beyond.argmax())
        if beyond[row] > _FAR * (high - low):
            found.append(
                f"{column.values[row]:.7g} in row {row + 1} of {code.name!r} (training had {low:.6g} to {high:.6g})"
            )
    return found


def _with_targets(found: NewRows, cells: Cells, schema: Schema, path: Path, targets: str) -> NewRows:
    """The same rows with their targets, without those that have none where targets are needed."""
    if schema.target is None or schema.target not in cells.columns:
        return found
    # As texts, classes are compared by their names.
    numbers = schema.task == "regression" or _are_numbers(schema)
    code = Column(schema.target, format="1234.5", unit=schema.target_unit) if numbers else None
    column = read_stored(cells, code or Column(schema.target, kind="category"))
    known = ~column.missing
    if wrong := wrong_values(column):
        raise ValueError(f"the target {column.name!r} of {path.name} holds {wrong[0]!r}, which training did not have")
    if not known.any() or (not known.all() and targets != NEEDED):
        return found
    if not known.all():
        count = int(column.missing.sum())
        note = f"{count} of {len(known)} rows of {path.name} were left out, as they have no {column.name!r}"
        rows = np.flatnonzero(known)
        kept = {name: [values[row] for row in rows] for name, values in found.kept.items()}
        groups = None if found.groups is None else found.groups[torch.from_numpy(rows)]
        found = replace(found, x=found.x[torch.from_numpy(rows)], kept=kept, notes=(*found.notes, note), groups=groups)
        column = column.take(known)
    return replace(found, y=_targets(column, schema, path))


def _are_numbers(schema: Schema) -> bool:
    """Whether the names of all classes are numbers, which may be written in more than one way."""
    try:
        return all(float(name) == float(name) for name in schema.class_names)
    except ValueError:
        return False


def _targets(column: RawColumn, schema: Schema, path: Path) -> Tensor:
    if schema.task == "regression":
        if column.is_text:
            raise ValueError(f"the target {column.name!r} of {path.name} holds text where training had numbers")
        return torch.from_numpy(column.values.astype(np.float64))
    number = {name: position for position, name in enumerate(schema.class_names)}
    texts: list[str | None] = column.texts.tolist()
    # Spellings that training took for one and the same.
    lower = {name.lower(): position for name, position in number.items()}
    if len(lower) == len(number):
        number = lower | number
        texts = [text if text in number or text is None else text.lower() for text in texts]
    labels = [number.get(text or "", -1) for text in texts]
    if -1 in labels:
        unknown = texts[labels.index(-1)]
        raise ValueError(f"the target {column.name!r} of {path.name} holds {unknown!r}, which training did not have")
    return torch.tensor(labels, dtype=torch.int64)
