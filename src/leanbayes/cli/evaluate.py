"""Measure a saved model on a data set's test part or on a file with targets.

For example ``leanbayes evaluate runs/digits digits``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._tables import console, metric_table, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder that `fit` or `compare` wrote")
    parser.add_argument("data", metavar="DATA", help="name of a data set (its test part), or a file with targets")
    parser.add_argument("--root", help="folder of named data sets")
    parser.add_argument("--split", type=shared.seed, help="which published split of a UCI set: that of the training")
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    from leanbayes.compare import load_checkpoint
    from leanbayes.compare.measure import measure, predict_all

    saved = load_checkpoint(options.checkpoint, shared.device_of(options))
    x, y = _examples(options, saved.schema)
    scale = saved.schema.normalisation
    target_std = 1.0 if scale.targets is None else scale.targets.std[0]
    prediction = predict_all(saved.model, scale(x), options.samples, saved.likelihood)
    metrics = measure(prediction, scale.scale_targets(y), target_std)
    if options.json:
        print_json({"checkpoint": options.checkpoint, "data": options.data, "examples": len(y), "metrics": metrics})
    else:
        console().print(metric_table(f"{options.data}: {len(y)} examples", metrics))
    return 0


def _examples(options: argparse.Namespace, schema: Any) -> tuple[Any, Any]:
    """Inputs and targets, as they were read."""
    from leanbayes.data import load, read_new

    path = Path(options.data).expanduser()
    if path.is_file():
        x, y = read_new(options.data, schema)
        if y is None:
            raise UsageError(f"{options.data} has no targets to measure against; use `leanbayes predict` without them")
        return x, y
    # A folder's images get the size that the network takes.
    given = {"size": schema.shape[-1]} if path.is_dir() and schema.inputs == "image" else {}
    if options.split is not None:
        given["split"] = options.split
    dataset = load(options.data, options.root, **given)
    if dataset.shape != schema.shape or dataset.class_names != schema.class_names:
        raise UsageError(
            f"{options.data} has inputs of shape {dataset.shape} and {dataset.classes or 'no'} classes, but the model "
            f"was trained on {schema.shape} and {schema.classes or 'no'} classes"
        )
    return dataset.test.tensor(), dataset.test.y
