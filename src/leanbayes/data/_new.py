"""New examples for a network that was trained on data of a known schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanbayes.data._arrow import CSV_ENDINGS, RawColumn, read_columns
from leanbayes.data._checks import check_targets
from leanbayes.data._dataset import Schema
from leanbayes.data._encode import check_finite, check_numeric, encode_columns, number_text
from leanbayes.data._files import PathLike
from leanbayes.data._npz import read_npz
from leanbayes.data._text import encode
from leanbayes.data.folder import ImageFiles, image_paths
from leanbayes.data.npz import inputs_of


def read_new(path: PathLike, schema: Schema) -> tuple[Tensor, Tensor | None]:
    """Reads inputs, and targets where the file has them, as the training data were read.

    Tables come from CSV, TSV or Parquet files with the columns of training (others are ignored, the order is free),
    everything from NPZ files with an array ``x`` and perhaps ``y``, texts also from a file with one text per line, and
    images also from an image file or from all those below a folder.

    Args:
        path: The file or folder.
        schema: Of the training data.

    Returns:
        Inputs ``[N, ...]`` before normalisation, and targets ``[N]`` or None.

    Raises:
        ValueError: If the file does not fit the schema, in one sentence.
    """
    path = Path(path).expanduser()
    images = image_paths(path) if schema.inputs == "image" else []
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if path.is_dir() and not images:
        raise ValueError(f"{path} is a folder, and holds no images for this network; give a file")
    if images:
        x, y = ImageFiles(images, schema.shape[-1])[:], None
    elif path.suffix == ".npz":
        x, y = _from_arrays(path, schema)
    elif schema.inputs == "text" and path.suffix == ".txt":
        lines = path.read_text("utf-8").splitlines()
        if not schema.vocabulary:
            raise ValueError("the network was trained on ids without their words; pass ids in an NPZ file")
        x, y = encode(lines, schema.vocabulary, schema.shape[0]), None
    elif schema.inputs == "table" and path.name.lower().endswith((*CSV_ENDINGS, ".parquet")):
        x, y = _from_table(path, schema)
    else:
        raise ValueError(f"inputs of the kind {schema.inputs!r} are not read from {path.name}; use an NPZ file with x")
    if tuple(x.shape[1:]) != schema.shape:
        raise ValueError(f"{path.name} has inputs of shape {tuple(x.shape[1:])}, but the network takes {schema.shape}")
    if y is not None:
        check_targets(y, schema.task, len(schema.class_names), path.name)
    return x, y


def _from_arrays(path: Path, schema: Schema) -> tuple[Tensor, Tensor | None]:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise ValueError(f"{path.name} lacks the array 'x'; it holds {', '.join(arrays) or 'nothing'}")
    y = arrays.get("y")
    if y is not None:
        y = y.astype(np.float64 if schema.task == "regression" else np.int64)
    return inputs_of(arrays["x"], schema.inputs, path.name), None if y is None else torch.from_numpy(y)


def _from_table(path: Path, schema: Schema) -> tuple[Tensor, Tensor | None]:
    if not schema.columns:
        raise ValueError(
            f"the network was trained on arrays, which have no names of columns to look for in {path.name}; "
            "use an NPZ file with x"
        )
    by_name = {column.name: column for column in read_columns(path, **schema.file_options)}
    if missing := [column.name for column in schema.columns if column.name not in by_name]:
        raise ValueError(
            f"{path.name} lacks the columns {', '.join(map(repr, missing))}, which the network was trained on"
        )
    columns = [by_name[column.name] for column in schema.columns]
    for column, code in zip(columns, schema.columns):
        if not code.categories:
            check_numeric(column, path.name, advice=False)
        if schema.missing != "mean" and column.missing.any():
            raise ValueError(
                f"column {column.name!r} of {path.name} misses {int(column.missing.sum())} values, and the network was "
                "trained without missing='mean'; fill or remove them"
            )
    check_finite(columns, path.name)
    rows = len(columns[0].values)
    target = by_name.get(schema.target or "")
    y = None if target is None or target.missing.any() else _targets(target, schema, path)
    return torch.from_numpy(encode_columns(columns, schema.columns, rows)), y


def _targets(column: RawColumn, schema: Schema, path: Path) -> Tensor:
    if schema.task == "regression":
        check_numeric(column, path.name, advice=False)
        return torch.from_numpy(column.values.astype(np.float64))
    number = {name: position for position, name in enumerate(schema.class_names)}
    texts: list[str | None] = (
        column.values.tolist() if column.is_text else [number_text(value) for value in column.values.tolist()]
    )
    labels = [number.get(text or "", -1) for text in texts]
    if -1 in labels:
        unknown = texts[labels.index(-1)]
        raise ValueError(f"the target {column.name!r} of {path.name} holds {unknown!r}, which training did not have")
    return torch.tensor(labels, dtype=torch.int64)
